"""Orderly ends: a first SIGTERM or SIGINT is noted and answered at a good moment, a second one ends the process at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Interrupted(Exception):  # not an error: somebody asked for it
    """The stage stopped because of a signal; `exit_code` is the shell's for it, and never 0: DVC would accept half a result."""

    interrupted = True

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass
class Interruption:
    """Whether a signal came, and which."""

    number: int | None = None

    @property
    def arrived(self) -> bool:
        return self.number is not None

    @property
    def exception(self) -> Interrupted:
        """What to raise once everything worth keeping is written."""
        assert self.number is not None
        return Interrupted(self.number)


@contextmanager
def deferred() -> Iterator[Interruption]:
    """Within the block the first SIGTERM or SIGINT only sets `number`."""
    interruption = Interruption()

    def note(number: int, _frame: FrameType | None) -> None:
        interruption.number = number
        for other in before:
            signal.signal(other, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
