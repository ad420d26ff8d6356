"""The lines of a journal: one JSON object each, appended whole, readable beside a torn end."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.io import files

EVENTS = "events.jsonl"
UNREADABLE = "unreadable"
SEALED_BYTES = 256
STAGE = {"stage": str, "tags": dict, "params": dict}
FIELDS: Mapping[str, Mapping[str, type]] = {
    "start": STAGE,
    "reopen": STAGE,
    "metrics": {"step": int, "values": dict},
    "tags": {"tags": dict},
    "description": {"text": str},
    "artifact": {"file": str, "folder": str, "sha256": str},
    "model": {"file": str, "sha256": str, "step": int},
    "end": {"status": str},
}
"""What each kind of line holds, besides its time."""
ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""Made once: `json.dumps` with arguments of its own makes one for each line, which a training meets with cold caches after every step."""


@dataclass(frozen=True)
class Event:
    """`end` is the offset of the byte after the line: where a reader that has dealt with it goes on."""

    end: int
    fields: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.fields.get("kind", UNREADABLE))

    @property
    def time_ms(self) -> int:
        return int(self.fields.get("time_ms", 0))


def number(value: float) -> float | str:
    """JSON has no infinity and no NaN: they are written as the words that `float` reads back."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def read(path: Path, offset: int = 0, limit: int | None = None) -> Iterator[Event]:
    """Every whole line from `offset` to `limit`; a damaged line is an event of the kind `unreadable`, a torn last one is not there."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            if not line.endswith(b"\n") or (limit is not None and offset > limit):
                return
            yield Event(offset, decoded(line))


def decoded(line: bytes) -> dict[str, Any]:
    """The fields of a line, all that its kind has among them; else it is unreadable."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) and is_whole(fields) else {"kind": UNREADABLE}


def is_whole(fields: Mapping[str, Any]) -> bool:
    wanted = {"kind": str, "time_ms": int, **FIELDS.get(str(fields.get("kind")), {})}
    return all(isinstance(fields.get(name), kind) for name, kind in wanted.items())


def whole_bytes(path: Path) -> int:
    """The offset behind the last whole line."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    with path.open("rb") as file:
        while size:
            start = max(0, size - 4096)
            file.seek(start)
            newline = file.read(size - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            size = start
    return 0


def settled_bytes(path: Path) -> int:
    """The offset behind the last whole line, once no power cut can take it."""
    size = whole_bytes(path)
    if size:
        files.sync(path)
    return size


def seal(path: Path, offset: int) -> str:
    """Tells whether the lines before `offset` are still those that they were: each holds its time."""
    start = max(0, offset - SEALED_BYTES)
    try:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(offset - start)).hexdigest()[:16]
    except FileNotFoundError:
        return hashlib.sha256().hexdigest()[:16]


class Writer:
    """Appends lines by one write each, so that a reader meets whole lines and a kill tears the last one at most."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._descriptor, whole_bytes(path))

    def append(self, fields: Mapping[str, Any]) -> None:
        """Raises OSError, with the file as it was before, when the line does not fit on the disk."""
        line = ENCODER.encode(fields).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written < len(line):
            os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_END) - written)
            raise OSError(f"only {written} of {len(line)} bytes could be written")

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
