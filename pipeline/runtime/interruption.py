"""Orderly ends: a first SIGTERM or SIGINT is answered at once or at a good moment, a second one ends the process as it stands."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.io import files

ASKED = (signal.SIGTERM, signal.SIGINT)
ABANDONED = signal.SIGUSR1
"""A SIGTERM that is never the second one: of `lifeline`, and of whoever cannot know whether the first was heard."""
TOLD_IN = "PIPELINE_INTERRUPTED_FILE"
"""Names a file for the exit code of an interrupted stage: DVC, which stands between the stage and its starter, answers 255 whatever happened."""


class Interrupted(BaseException):  # like KeyboardInterrupt: nothing that catches errors may take it for one
    """The stage stopped because of a signal; `exit_code` is the shell's for it, and never 0: DVC would accept half a result."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass
class Interruption:
    """Whether a signal came, and which."""

    number: int | None = None

    def pause(self) -> None:
        """Called where it is good to stop. Raises Interrupted if a signal came."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def answered(answer: Callable[[int], None]) -> Iterator[None]:
    """Within the block the first signal is handed to `answer`, and the next one finds the default: the end of the process."""
    came = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        first, came = not came, True
        if number != ABANDONED:  # which may stand for one that is still on its way, and is not the second then
            for other in ASKED:
                signal.signal(other, signal.SIG_DFL)
        if first:
            answer(signal.SIGTERM if number == ABANDONED else number)

    before = {number: signal.signal(number, handle) for number in (*ASKED, ABANDONED)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # a process that is ending already need not hear that DVC has ended
            signal.signal(number, signal.SIG_IGN if came and number == ABANDONED else handler)


@contextmanager
def deferred() -> Iterator[Interruption]:
    """Within the block the first signal is only noted."""
    interruption = Interruption()

    def note(number: int) -> None:
        interruption.number = number

    with answered(note):
        yield interruption


def give_up(number: int) -> None:
    raise Interrupted(number)


def raised() -> AbstractContextManager[None]:
    """Within the block the first signal raises Interrupted, so that drafts are removed and the run is closed on the way out."""
    return answered(give_up)


def tell(exit_code: int) -> None:
    """Whoever started DVC can know, too, that a stage was interrupted; on a full disk, from the signal alone."""
    if path := os.environ.get(TOLD_IN):
        with suppress(OSError):
            files.write_text(Path(path), str(exit_code))
