"""Repairs the lock records (`rwlock`) that a killed DVC leaves behind, because these records would stop the next DVC."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from pipeline.io import files

RECORD, GUARD = "rwlock", "rwlock.lock"
CLOCK_TOLERANCE_S = 2.0
"""Tolerance when the start time of a process is compared with the modification time of a file."""


def repair(temporary: Path) -> list[str]:
    """Repair DVC's lock records of stages and experiments in `temporary`, the folder `.dvc/tmp`.

    Returns one message for each repair, and for each record that is kept because its DVC still runs. A DVC that is killed while it writes a
    record leaves half of it, which every later DVC rejects. A DVC that is killed later leaves a record with its process id. If another
    process has that id by then, which is likely in a new container, DVC believes that the stage is still running.
    """
    return [message for path in records(temporary) for message in repair_record(path)]


def records(temporary: Path) -> list[Path]:
    """Return the paths of the lock records that exist: of stages, and of experiments."""
    return [path for path in (temporary / RECORD, temporary / "exps" / RECORD) if path.exists()]


def repair_record(path: Path) -> list[str]:
    """Repair the record at `path` and return the messages about it, as `repair` does.

    Change nothing if another process holds the record's own lock file, or if a process that the record names is alive.
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
    """Return a dict with `pid` and `cmd` for each process in a record, or None if the record does not have DVC's format."""
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
    """Return True if the process of `holder`, an entry of a lock record with its `pid` and `cmd`, may still be running.

    This is so if a process with the same id runs `dvc` or the recorded command, and started before the record was last changed
    (`recorded_s`). It is also so if the system does not let this process inspect that process.
    """
    try:
        process = psutil.Process(holder["pid"])
        started_s, command = process.create_time(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return started_s <= recorded_s + CLOCK_TOLERANCE_S and ("dvc" in command or holder["cmd"] in command)
