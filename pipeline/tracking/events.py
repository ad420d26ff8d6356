"""The events of a journal: one JSON object per line, appended by one `write` call. Readers ignore an incomplete last line."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.io import files

EVENTS, SYSTEM = "events.jsonl", "system.jsonl"
UNREADABLE = "unreadable"
STAGE_FIELDS = {"stage": str, "tags": dict, "params": dict}
FIELDS: Mapping[str, Mapping[str, type]] = {
    "start": STAGE_FIELDS,
    "reopen": STAGE_FIELDS,
    "metrics": {"step": int, "values": dict},
    "description": {"text": str},
    "artifact": {"file": str, "folder": str},
    "model": {"file": str, "sha256": str, "step": int},
    "end": {"status": str},
}
"""The required fields of each kind of event and their types. Every event also has `kind` and `time_ms`."""
ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""A shared encoder. `json.dumps` with non-default arguments would create one per call, which takes long after a training step,
when the CPU caches are cold."""


@dataclass(frozen=True)
class Event:
    """One event. `end` is the offset of the first byte after its line, where a reader resumes; `fields` is the JSON object."""

    end: int
    fields: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.fields.get("kind", UNREADABLE))

    @property
    def time_ms(self) -> int:
        return int(self.fields.get("time_ms", 0))


def number(value: float) -> float | str:
    """Return a finite value as a float, and NaN or infinity, which JSON does not have, as a string that `float` parses."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def read(path: Path, offset: int = 0, limit: int | None = None) -> Iterator[Event]:
    """Yield the events of the whole lines between the byte offsets `offset` and `limit` (None: the end of the file).

    A damaged line gives an event of kind `unreadable`. An incomplete last line is skipped, and a missing file has no events.
    """
    try:
        file = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return
    with file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            if not line.endswith(b"\n") or (limit is not None and offset > limit):
                return
            yield Event(offset, decoded(line))


def read_durable(path: Path, offset: int) -> Iterator[Event]:
    """Yield the events from the byte offset `offset` on. If there are any, fsync the file first, so that they are certainly on disk."""
    if has_more(path, offset):
        size = path.stat().st_size
        files.sync(path)
        yield from read(path, offset, limit=size)


def has_more(path: Path, offset: int) -> bool:
    """Return True if the file has a whole line after the byte offset `offset`."""
    return next(read(path, offset), None) is not None


def decoded(line: bytes) -> dict[str, Any]:
    """Return the fields of a line, or `{"kind": "unreadable"}` if the JSON is invalid, or if a field is missing or has the wrong type.

    An event of a kind that is not in `FIELDS` needs only the fields `kind` and `time_ms`.
    """
    try:
        fields = dict(json.loads(line))
    except (ValueError, TypeError):
        return {"kind": UNREADABLE}
    types = {"kind": str, "time_ms": int, **FIELDS.get(str(fields.get("kind")), {})}
    is_whole = all(isinstance(fields.get(name), expected) for name, expected in types.items())
    return fields if is_whole else {"kind": UNREADABLE}


class Writer:
    """Appends each event by one `write` call, so that a kill can leave only the last line incomplete.

    `end` is the offset just after the last whole line. The file is truncated there, which removes a line left incomplete by a kill.
    """

    def __init__(self, path: Path, end: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._descriptor, end)

    def append(self, fields: Mapping[str, Any]) -> None:
        """Append one event.

        Raises OSError, and leaves the file unchanged, if the line does not fit on the disk. Raises ValueError for NaN and infinity.
        """
        line = ENCODER.encode(fields).encode(errors="replace") + b"\n"
        written = os.write(self._descriptor, line)
        if written < len(line):
            os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_END) - written)
            raise OSError(f"only {written} of {len(line)} bytes of an event could be written")

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
