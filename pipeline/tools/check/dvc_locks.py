"""Repairs the lock records (`rwlock`) that a killed DVC leaves behind, because these records would stop the next DVC."""

import json
import re
import time
from pathlib import Path

import psutil

from pipeline.core import files

RECORD, GUARD = "rwlock", "rwlock.lock"
PID = re.compile(rb'"pid": (\d+)')
CLOCK_TOLERANCE_S = 2.0
"""Tolerance when the start time of a process is compared with the modification time of a file."""


def repair(temporary: Path) -> list[str]:
    """Repair the lock records that a killed DVC left in `temporary`, the folder `.dvc/tmp`. Return messages for the user.

    DVC has one lock record for stages and one for experiments. There is a message for each repaired record, and for each record that is
    kept because a process named in it is running. If DVC is killed while it writes a record, the record is truncated, and every later DVC
    rejects it. If DVC is killed at another time, its process id stays in the record. Another process may get this id, which is likely in a
    new container. DVC then believes that the stage is still running.
    """
    return [message for path in records(temporary) for message in repair_record(path)]


def records(temporary: Path) -> list[Path]:
    """Return the paths of the lock records that exist: of stages, and of experiments."""
    return [path for path in (temporary / RECORD, temporary / "exps" / RECORD) if path.exists()]


def repair_record(path: Path) -> list[str]:
    """Repair the lock record at `path`. Return the messages for the user, if there are any.

    Change nothing if another process holds the lock file of the record (`rwlock.lock`), or if a process named in the record may be running.
    """
    with files.locked(path.with_name(GUARD), wait=False) as free:
        if not free:
            return []
        pids = named(path.read_bytes())
        if pids is None:
            aside = path.replace(path.with_name(f"{RECORD}.damaged-{time.time_ns()}"))
            return [f"{path}: was truncated by a DVC that was killed: moved to {aside.name}"]
        if alive := [pid for pid in pids if is_alive(pid, path.stat().st_mtime)]:
            return [f"another DVC is running here (process {alive[0]}) and locks its stages until it ends"]
        if not pids:
            return []
        path.unlink()
        return [f"{path}: was left by process {pids[0]}, a DVC that was killed: removed"]


def named(content: bytes) -> list[int] | None:
    """Return the ids of the processes that hold a lock according to `content`, the content of a record; None if it is truncated."""
    try:
        json.loads(content)
    except ValueError:
        return None
    return [int(pid) for pid in PID.findall(content)]


def is_alive(pid: int, recorded_s: float) -> bool:
    """Return True if the process that a lock record names may still be running.

    It is another process if it started after `recorded_s`, the time when the record was last changed.
    """
    try:
        return psutil.Process(pid).create_time() <= recorded_s + CLOCK_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # the system does not tell
        return True
