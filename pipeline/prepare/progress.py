"""Progress of a long loop: a bar on a terminal, else a line every `LINE_EVERY_S` seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
LINE_EVERY_S = 10.0


class Advance:
    """Counts the units of work that are done, such as images. Each call adds to the count, and calls `report` with the new total."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self.done = 0
        self.report = report

    def __call__(self, units: int = 1) -> None:
        self.done += units
        self.report(self.done)

    def each(self, items: Iterable[Item], units: Callable[[Item], int]) -> Iterator[Item]:
        """Yield the items, and count them. An item counts as `units(item)` units. It is counted when the caller asks for the next item."""
        for item in items:
            yield item
            self(units(item))


@contextmanager
def progress(label: str, total: int, unit: str) -> Iterator[Advance]:
    """Show progress on stderr: `with progress("prepare", 60_000, "images") as advance: advance(256)`. A `total` of 0 means that it is unknown."""
    if not sys.stderr.isatty():
        yield Advance(lines(label, total, unit))
        return
    from rich.console import Console  # late: only needed on a terminal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(label, total=total or None)
        yield Advance(lambda done: display.update(task, completed=done))


def lines(label: str, total: int, unit: str) -> Callable[[int], None]:
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            print(f"{label}: {done}{f' of {total}' if total else ''} {unit}", file=sys.stderr, flush=True)

    return report
