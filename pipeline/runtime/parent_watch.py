"""A stage does not outlive the DVC that started it: nobody would take its result, and the next `dvc repro` would meet it."""

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.runtime import interruption

STARTED_BY_DVC = "DVC_STAGE"
GRACE_S = 0.2  # a signal to the whole group reaches this process too, and is answered as what it is


def hold() -> None:
    """From now on this process is interrupted when DVC, or a shell between them, is gone; nothing where DVC did not start it."""
    if STARTED_BY_DVC not in os.environ:
        return
    try:
        descriptors = [os.pidfd_open(pid) for pid in starters()]
    except PermissionError:
        return  # another user's process: not ours to watch
    except (ProcessLookupError, FileNotFoundError):  # gone while it was looked at
        let_go()
    else:
        threading.Thread(target=watch, args=(descriptors,), name="lifeline", daemon=True).start()


def starters() -> Iterator[int]:
    """The parent, and its parents up to DVC, the first that was not started by DVC itself."""
    pid = os.getppid()
    while pid:  # 0 is outside of this container
        yield pid
        if not was_started_by_dvc(pid):
            return
        pid = parent(pid)


def was_started_by_dvc(pid: int) -> bool:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(variable.startswith(STARTED_BY_DVC.encode() + b"=") for variable in variables)


def parent(pid: int) -> int:
    # the name of a process stands in brackets and may hold anything
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


def watch(descriptors: list[int]) -> None:
    """Until one of the processes is gone."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    time.sleep(GRACE_S)
    let_go()


def let_go() -> None:
    print("the DVC that started this stage is gone: the stage ends", file=sys.stderr, flush=True)
    os.kill(os.getpid(), interruption.ABANDONED)
