"""Lets the readers read only some pieces of large files, to look at the data."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


class Look:
    """Which share of the files was read within `looking`: the bytes or rows that were read, and those that there are, by path."""

    def __init__(self) -> None:
        self.parts = dict[Path, tuple[int, int]]()

    @property
    def share(self) -> float:
        """Return the share of what was read, at most 1."""
        read, every = (sum(numbers) for numbers in zip(*self.parts.values(), strict=True)) if self.parts else (1, 1)
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
