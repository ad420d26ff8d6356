"""Stops a stage when the process that started it ends: DVC, `search`, or the agent of torch.distributed.run.

If the stage ran on, its result would be lost, and the next `dvc repro` could start the stage a second time.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.runtime import interruption
from pipeline.runtime.interruption import STARTED_BY_TORCHRUN

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
        if not was_started_by_dvc(pid):
            return
        pid = parent(pid)


def was_started_by_dvc(pid: int) -> bool:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(variable.startswith(STARTED_BY_DVC.encode() + b"=") for variable in variables)


def parent(pid: int) -> int:
    # the process name is in parentheses and may itself contain spaces and parentheses, so split after the last parenthesis
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


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
    os.kill(os.getpid(), interruption.UNCOUNTED_STOP)
