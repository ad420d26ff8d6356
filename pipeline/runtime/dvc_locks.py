"""What a killed DVC leaves behind and trips over: its own record of who reads and writes what."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from pipeline.io import files

RECORD, GUARD = "rwlock", "rwlock.lock"
CLOCKS_DIFFER_S = 2.0


def mend(temporary: Path) -> list[str]:
    """Put right DVC's records of stages and of experiments below `.dvc/tmp`, and say what was wrong, or who is at work.

    DVC writes a record in place: killed in between, it leaves half of it, which every later DVC refuses. And it takes a process number that is
    in use again, as it soon is in a new container, for the DVC that was killed, and calls the stage busy.
    """
    return [said for path in records(temporary) for said in mend_record(path)]


def records(temporary: Path) -> list[Path]:
    """Returns the records that are there."""
    return [path for path in (temporary / RECORD, temporary / "exps" / RECORD) if path.exists()]


def mend_record(path: Path) -> list[str]:
    """Nothing is touched while a DVC is at the record, nor as long as one that it names lives."""
    with files.locked(path.with_name(GUARD), wait=False) as free:
        if not free:
            return []
        holders = parse(path.read_bytes())
        if holders is None:
            aside = path.replace(path.with_name(f"{RECORD}.damaged-{time.time_ns()}"))
            return [f"{path}: a DVC that was killed left it half written: it is {aside.name} now"]
        if living := [holder for holder in holders if lives(holder, path.stat().st_mtime)]:
            return [f"another DVC is at work here (process {living[0]['pid']}): what needs the same stages is refused until it has ended"]
        if not holders:
            return []
        path.unlink()
        return [f"{path}: named process {holders[0]['pid']}, a DVC that was killed: it is removed"]


def parse(content: bytes) -> list[dict[str, Any]] | None:
    """The processes that the record names; None where it is not in DVC's form."""
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


def lives(holder: Mapping[str, Any], recorded_s: float) -> bool:
    """Whether the process is there and can be the one that was recorded; where the system does not tell, it lives."""
    try:
        process = psutil.Process(holder["pid"])
        begun_s, command = process.create_time(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return begun_s <= recorded_s + CLOCKS_DIFFER_S and ("dvc" in command or holder["cmd"] in command)
