"""Locks of a checkout: at a time, only the processes of one PID namespace (the host, or one container) may use the checkout.

DVC's own lock records contain process ids, which have no meaning in another PID namespace. If DVC ran in two namespaces, each would treat
the locks of the other as stale. This lock is an flock, which works between the host and all containers that mount the checkout. The kernel
releases it when the process that holds it ends.

`alone` locks the checkout for one command, from writing params.yaml to the end of DVC. Otherwise one command could train with the parameters
of another. `repair_dvc` repairs the lock records (`rwlock`) that a killed DVC leaves behind, because these records would stop the next DVC.
"""

import fcntl
import json
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


RECORD, GUARD = "rwlock", "rwlock.lock"
CLOCK_TOLERANCE_S = 2.0
"""Tolerance when the start time of a process is compared with the modification time of a file."""


def repair_dvc(temporary: Path) -> list[str]:
    """Repair the lock records that a killed DVC left in `temporary`, the folder `.dvc/tmp`. Return messages for the user.

    DVC has one lock record for stages and one for experiments. There is a message for each repaired record, and for each record that is
    kept because a process named in it is running. If DVC is killed while it writes a record, the record is truncated, and every later DVC
    rejects it. If DVC is killed at another time, its process id stays in the record. Another process may get this id, which is likely in a
    new container. DVC then believes that the stage is still running.
    """
    return [message for path in dvc_records(temporary) for message in repair_record(path)]


def dvc_records(temporary: Path) -> list[Path]:
    """Return the paths of the lock records that exist: of stages, and of experiments."""
    return [path for path in (temporary / RECORD, temporary / "exps" / RECORD) if path.exists()]


def repair_record(path: Path) -> list[str]:
    """Repair the lock record at `path`. Return the messages for the user, if there are any.

    Change nothing if another process holds the lock file of the record (`rwlock.lock`), or if a process named in the record may be running.
    """
    with files.locked(path.with_name(GUARD), wait=False) as free:
        if not free:
            return []
        holders = holders_in(path.read_bytes())
        if holders is None:
            aside = path.replace(path.with_name(f"{RECORD}.damaged-{time.time_ns()}"))
            return [f"{path}: was truncated by a DVC that was killed: moved to {aside.name}"]
        if alive := [pid for pid, command in holders if is_alive(pid, command, path.stat().st_mtime)]:
            return [f"another DVC is running here (process {alive[0]}) and locks its stages until it ends"]
        if not holders:
            return []
        path.unlink()
        return [f"{path}: was left by process {holders[0][0]}, a DVC that was killed: removed"]


def holders_in(content: bytes) -> list[tuple[int, str]] | None:
    """Return the id and the command of each process that holds a lock according to a record with this content.

    Return None if it does not have DVC's format: one process for each path that is written, and a list for each that is read.
    """
    try:
        entries = [entry for kind in json.loads(content).values() for entry in kind.values()]
        holders = [holder for entry in entries for holder in (entry if isinstance(entry, list) else [entry])]
        return [(int(holder["pid"]), str(holder["cmd"])) for holder in holders]
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def is_alive(pid: int, command: str, recorded_s: float) -> bool:
    """Return True if the process that a lock record names by its id and its command may still be running.

    Return True if a process with this id runs `dvc` or the command, and started before `recorded_s`, the time when the record was last
    changed. Also return True if the system does not allow reading the command of the process with this id.
    """
    import psutil  # late: the Dockerfile imports this module with a Python that has no packages

    try:
        process = psutil.Process(pid)
        started_s, running = process.create_time(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return started_s <= recorded_s + CLOCK_TOLERANCE_S and ("dvc" in running or command in running)
