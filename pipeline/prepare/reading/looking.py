"""Lets the readers read only some pieces of large files, to look at the data."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


class Look:
    """Which share of the files was read within `looking`: the bytes or rows that were read, and those that there are, by path."""

    def __init__(self) -> None:
        self.parts = dict[Path, tuple[int, int]]()

    def share(self, paths: Iterable[Path] = ()) -> float:
        """Return the share of these files that was read, at most 1; by default, that of all."""
        parts = [self.parts[path] for path in paths if path in self.parts] or [*self.parts.values()]
        read, every = (sum(numbers) for numbers in zip(*parts, strict=True)) if parts else (1, 1)
        return min(1.0, read / max(1, every))


LOOK: ContextVar[Look | None] = ContextVar("look", default=None)


@contextmanager
def looking() -> Iterator[Look]:
    """Within this context, only some pieces of large files are read: see `pipeline.prepare.reading.streams.look`. Gives what was read."""
    token = LOOK.set(found := Look())
    try:
        yield found
    finally:
        LOOK.reset(token)
