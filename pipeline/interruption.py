"""Orderly ends: a first SIGTERM or SIGINT is answered at once or at a good moment, a second one ends the process as it stands."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType

ASKED = (signal.SIGTERM, signal.SIGINT)
ABANDONED = signal.SIGUSR1
"""What `lifeline` sends: a SIGTERM that is never the second one."""


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
        if number == ABANDONED:
            if came:
                return  # whoever ended DVC told this process too
            number = signal.SIGTERM
        came = True
        for other in ASKED:
            signal.signal(other, signal.SIG_DFL)
        answer(number)

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
