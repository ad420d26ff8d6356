"""Repairs the lock records (`rwlock`) that a killed DVC leaves behind, because these records would stop the next DVC."""

import json
import time
from pathlib import Path

import psutil

from pipeline.core import files

RECORD, GUARD = "rwlock", "rwlock.lock"
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
        holders = parse(path.read_bytes())
        if holders is None:
            aside = path.replace(path.with_name(f"{RECORD}.damaged-{time.time_ns()}"))
            return [f"{path}: was truncated by a DVC that was killed: moved to {aside.name}"]
        if alive := [pid for pid, command in holders if is_alive(pid, command, path.stat().st_mtime)]:
            return [f"another DVC is running here (process {alive[0]}) and locks its stages until it ends"]
        if not holders:
            return []
        path.unlink()
        return [f"{path}: was left by process {holders[0][0]}, a DVC that was killed: removed"]


def parse(content: bytes) -> list[tuple[int, str]] | None:
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
    try:
        process = psutil.Process(pid)
        started_s, running = process.create_time(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return started_s <= recorded_s + CLOCK_TOLERANCE_S and ("dvc" in running or command in running)
