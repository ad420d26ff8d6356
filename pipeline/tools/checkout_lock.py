"""A lock on a checkout: at a time, only the processes of one PID namespace (the host, or one container) may use the checkout.

DVC's own lock records contain process ids, which have no meaning in another PID namespace. If DVC ran in two namespaces, each would treat
the locks of the other as stale. This lock is an flock, which works between the host and all containers that mount the checkout. The kernel
releases it when the process that holds it ends.

`alone` locks the checkout for one command, from writing params.yaml to the end of DVC. Otherwise one command could train with the parameters
of another.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pipeline.core import files
from pipeline.core.refusal import Unavailable

LOCK, COMMAND_LOCK = ".pipeline/checkout.lock", ".pipeline/command.lock"
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""The boot id distinguishes hosts: their initial PID namespaces all have the same number, and a host name can change during a job."""
SHARED_LOCK = "PIPELINE_COMMAND_LOCK_FD"
"""The environment variable by which a command that has the lock of `alone` shares it with one that it starts: the inherited file descriptor."""
LOCKED: set[TextIO] = set()
"""The files that `alone` has locked. A forked process closes its copies, which would keep the lock after its parent has released it."""
os.register_at_fork(after_in_child=lambda: [file.close() for file in LOCKED])
CLAIM_WITHIN_S, RETRY_S = 1.0, 0.05
"""Timeout and interval of retries: a process of another namespace holds the lock for an instant even if its own attempt fails."""


@contextmanager
def held(top: Path, *, place: str = "") -> Iterator[None]:
    """Lock the checkout at `top` until the block ends. All processes of this PID namespace (the host, or one container) share the lock.

    `place` says where this job runs, by default "on HOSTNAME". It is shown to the user of another job that cannot get the lock. Raises
    Unavailable, with the place of the other job, if another PID namespace holds the lock for longer than CLAIM_WITHIN_S seconds.
    """
    path = top / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    namespace = f"{BOOT.read_text(encoding='ascii').strip()} {Path('/proc/self/ns/pid').readlink()}"
    with path.open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + CLAIM_WITHIN_S
        while (holder := claim(file, namespace, place or f"on {socket.gethostname()}")) is not None:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{top.absolute()}: a job {holder or 'in another container'} is using this checkout: wait until it ends, or stop it"
                )
            time.sleep(RETRY_S)
        yield


def claim(file: TextIO, namespace: str, place: str) -> str | None:
    """Try to lock `file` for the processes of the PID namespace `namespace`. Return None on success.

    If another namespace holds the lock, return the place where its job runs, which is in `file`. If no process holds the lock yet, write
    `namespace` and `place` to `file`, where later calls read them.
    """
    with suppress(BlockingIOError), files.naming(Path(file.name)):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        os.write(file.fileno(), f"{namespace}\n{place}".encode())  # no buffer, which would be written again when the file is closed
    # downgrading an exclusive flock to a shared one is not atomic: another namespace may have written in between, so read back the holder
    fcntl.flock(file, fcntl.LOCK_SH)
    file.seek(0)
    holder, _, holder_place = file.read().partition("\n")
    if holder == namespace:
        return None
    fcntl.flock(file, fcntl.LOCK_UN)
    return holder_place


@contextmanager
def alone(top: Path, *, place: str = "") -> Iterator[int]:
    """Lock the checkout at `top` for this process until the block ends. Yield the file descriptor of the lock.

    If another command has it, print so and wait. A command that is started with this file descriptor (`pass_fds`), and with its number in the
    variable SHARED_LOCK, shares the lock: it does not wait, and keeps the lock until it ends, even if this process is killed. Raises
    Unavailable like `held`.
    """
    path = top / COMMAND_LOCK
    with held(top, place=place):
        if (shared := inherited(path)) is not None:
            yield shared
            return
        with path.open("a+", encoding="utf-8") as file:
            if not take(file, wait=False):
                file.seek(0)
                holder = file.read()  # empty for an instant, until the holder has written its id
                named = f": process {holder}, or one that it started" if holder else ""
                print(f"waiting until another command in this checkout has ended{named}", flush=True)
                take(file, wait=True)
            LOCKED.add(file)
            try:
                yield file.fileno()
            finally:
                LOCKED.discard(file)
                file.truncate(0)


def inherited(lock: Path) -> int | None:
    """Return the file descriptor of `lock` that the variable SHARED_LOCK names, or None if this process has not inherited it.

    The variable reaches processes without the file descriptor, too: Popen closes those that it is not told to pass on.
    """
    number = os.environ.get(SHARED_LOCK, "")
    with suppress(OSError):
        if number.isdecimal() and os.path.samestat(os.fstat(int(number)), lock.stat()):
            return int(number)
    return None


def take(file: TextIO, *, wait: bool) -> bool:
    """Lock `file`, and write the id of this process to it. Return False if another process has it and `wait` is False."""
    with files.naming(Path(file.name)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    file.truncate(0)
    os.write(file.fileno(), str(os.getpid()).encode())
    return True
