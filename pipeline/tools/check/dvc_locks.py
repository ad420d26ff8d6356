"""Repairs the lock records (`rwlock`) that a killed DVC leaves behind, because these records would stop the next DVC."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        if alive := [holder for holder in holders if is_alive(holder, path.stat().st_mtime)]:
            return [f"another DVC is running here (process {alive[0]['pid']}) and locks its stages until it ends"]
        if not holders:
            return []
        path.unlink()
        return [f"{path}: was left by process {holders[0]['pid']}, a DVC that was killed: removed"]


def parse(content: bytes) -> list[dict[str, Any]] | None:
    """Return the processes that hold a lock according to a record, each as a dict with its `pid` and its command `cmd`.

    `content` is the content of the record. Return None if it does not have DVC's format.
    """
    try:
        record = json.loads(content)
        return list(holders_of(record))
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def holders_of(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("write", "read"):
        for entry in record.get(kind, {}).values():
            for holder in entry if kind == "read" else [entry]:
                yield {"pid": int(holder["pid"]), "cmd": str(holder["cmd"])}


def is_alive(holder: Mapping[str, Any], recorded_s: float) -> bool:
    """Return True if the process that a lock record names may still be running. `holder` has the `pid` and the `cmd` of this process.

    Return True if a process with this id runs `dvc` or the command `cmd`, and started before `recorded_s`, the time when the record was
    last changed. Also return True if the system does not allow reading the command of the process with this id.
    """
    try:
        process = psutil.Process(holder["pid"])
        started_s, command = process.create_time(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return started_s <= recorded_s + CLOCK_TOLERANCE_S and ("dvc" in command or holder["cmd"] in command)
