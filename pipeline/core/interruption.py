"""Clean shutdown on signals, and when the process that started a stage ends: DVC, `search`, or the agent of torch.distributed.run.

The first SIGTERM or SIGINT stops a stage, at once or at the next safe point. A second signal kills the process. If a stage ran on after DVC
had ended, its result would be lost, and the next `dvc repro` could start the stage a second time.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.core import files

STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_CODES = tuple(128 + number for number in STOP_SIGNALS)
"""The exit codes of a command that a signal has stopped."""
UNCOUNTED_STOP = signal.SIGUSR1
"""Stops a stage like SIGTERM, but never counts as the second signal. It is sent by the watch of the parent and by `tools.supervision`,
which cannot know whether a first signal has arrived.
"""
UNCOUNTED = {UNCOUNTED_STOP: signal.SIGTERM, signal.SIGUSR2: signal.SIGINT}
"""The signals that never count as the second one, with the stop signal that each of them stands for."""
EXIT_CODE_FILE = "PIPELINE_EXIT_CODE_FILE"
"""The environment variable with the path of a file to which a stage that fails writes its exit code.

The exit code of `dvc repro` does not show it, because `dvc repro` exits with 255 for any failed stage.
"""
KILLED = 128 + signal.SIGKILL


class Interrupted(BaseException):  # like KeyboardInterrupt: `except Exception` must not catch it
    """Raised when a signal stops the stage. The stage then exits with `exit_code`, which is 128 + the signal number.

    If the stage exited with 0 instead, DVC would accept the incomplete result.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass
class Interruption:
    """Records the first signal that arrived: `number` is its number, or None if there was none."""

    number: int | None = None

    def pause(self) -> None:
        """Call this at points where it is safe to stop. Raises Interrupted if a signal has arrived."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def on_first_signal(handler: Callable[[int], None]) -> Iterator[None]:
    """Within the block, call `handler` with the number of the first stop signal. A second SIGTERM or SIGINT kills the process.

    A process that torch.distributed.run started is not killed: it may get the same signal from a terminal or from Slurm, and from its agent.

    The stop signals are SIGTERM, SIGINT and those of UNCOUNTED, which the watch of the parent and `tools.supervision` send. If one of these
    is the first signal, `handler` is called with the signal that it stands for. The next SIGTERM or SIGINT may have the same cause, so it is
    ignored, and only the one after it kills the process. If a signal of UNCOUNTED is not the first one, it has no effect.
    """
    received = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        first, received = not received, True
        if (
            number not in UNCOUNTED and STARTED_BY_TORCHRUN not in os.environ
        ):  # after one of UNCOUNTED, SIGTERM or SIGINT may arrive for the same reason: do not count it
            for other in STOP_SIGNALS:
                signal.signal(other, signal.SIG_DFL)
        if first:
            handler(UNCOUNTED.get(signal.Signals(number), number))

    before = {number: signal.signal(number, handle) for number in (*STOP_SIGNALS, *UNCOUNTED)}
    try:
        yield
    finally:
        for number, previous in before.items():
            # the default action of these signals would kill a process that is already stopping
            signal.signal(number, signal.SIG_IGN if received and number in UNCOUNTED else previous)


@contextmanager
def deferred() -> Iterator[Interruption]:
    """Within the block, only record the first signal; `Interruption.pause` then raises Interrupted at a safe point."""
    interruption = Interruption()

    def record(number: int) -> None:
        interruption.number = number

    with on_first_signal(record):
        yield interruption


def raise_on_signal() -> AbstractContextManager[None]:
    """Within the block, raise Interrupted on the first signal. Cleanup code then removes temporary files and closes the tracking run."""
    return on_first_signal(lambda number: Interruption(number).pause())


def record_exit_code(exit_code: int) -> None:
    """Write the exit code of a stage to the file whose path is in the variable PIPELINE_EXIT_CODE_FILE; delete this file if the code is 0.

    Do nothing if this variable is not set, or in a process that torch.distributed.run started: its agent decides for all processes. An error
    while writing, for example because the disk is full, is ignored.
    """
    if (path := os.environ.get(EXIT_CODE_FILE)) and STARTED_BY_TORCHRUN not in os.environ:
        with suppress(OSError):
            if exit_code:
                files.write_text(Path(path), str(exit_code))
            else:
                Path(path).unlink(missing_ok=True)


STARTED_BY_DVC = "DVC_STAGE"
STARTED_BY_SEARCH = "PIPELINE_STARTED_BY_SEARCH"
GRACE_S = 0.2  # if a signal killed DVC's whole process group, this process received it too and handles it in this time


def start() -> None:
    """Start a thread that stops this process when DVC ends, or when a process between DVC and this process (such as a shell) ends.

    If torch.distributed.run or `search` started this process without DVC, only the parent process is watched. If one of these processes has
    already ended, stop at once. To stop, this process sends itself UNCOUNTED_STOP. Do nothing if none of these started this process, or if one
    of the watched processes belongs to another user.
    """
    if STARTED_BY_DVC in os.environ:
        pids = ancestors_up_to_dvc()
    elif STARTED_BY_TORCHRUN in os.environ or STARTED_BY_SEARCH in os.environ:
        pids = iter([os.getppid()])
    else:
        return
    try:
        descriptors = [os.pidfd_open(pid) for pid in pids]
    except PermissionError:
        return  # a process of another user cannot be inspected
    except (ProcessLookupError, FileNotFoundError):  # a parent process ended while it was inspected
        interrupt_self()
    else:
        threading.Thread(target=watch, args=(descriptors,), name="parent watch", daemon=True).start()


def ancestors_up_to_dvc() -> Iterator[int]:
    """Yield the pids of the parent process, its parent, and so on up to DVC.

    DVC sets an environment variable for the processes that it starts: the first ancestor without the variable is DVC.
    """
    pid = os.getppid()
    while pid:  # 0 means that the parent is outside this container
        yield pid
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if not any(variable.startswith(STARTED_BY_DVC.encode() + b"=") for variable in variables):
            return
        # the process name is in parentheses and may itself contain spaces and parentheses, so split after the last parenthesis
        pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


def watch(descriptors: list[int]) -> None:
    """Block until one of the watched processes ends, then stop this process.

    The watched processes are DVC and the processes between DVC and this process. `descriptors` are their pidfds, which
    are file descriptors that refer to processes.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    time.sleep(GRACE_S)
    interrupt_self()


def interrupt_self() -> None:
    print("the process that started this stage has ended: stopping the stage", file=sys.stderr, flush=True)
    os.kill(os.getpid(), UNCOUNTED_STOP)
