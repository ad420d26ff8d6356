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
"""One encoder for all events: `json.dumps` with non-default arguments creates an encoder per call, which slows the training loop."""


@dataclass(frozen=True)
class Event:
    """One event, read from a line of a file of events. `fields` is the JSON object in this line. `end` is the byte offset in the file after
    this line.
    """

    end: int
    fields: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.fields.get("kind", UNREADABLE))

    @property
    def time_ms(self) -> int:
        return int(self.fields.get("time_ms", 0))


def number(value: float) -> float | str:
    """Return a finite value as a float. Return NaN and infinity, which JSON does not have, as strings, such as "nan"."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def read(path: Path, offset: int = 0, limit: int | None = None) -> Iterator[Event]:
    """Yield an event for each whole line between the byte offsets `offset` and `limit` (None: the end of the file).

    A damaged line gives an event of kind `unreadable`. An incomplete last line gives none. If the file is missing, yield nothing.
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
    """Yield the events after the byte offset `offset`. If there are any, fsync the file first: a power cut cannot remove them afterwards."""
    if has_more(path, offset):
        size = path.stat().st_size
        files.sync(path)
        yield from read(path, offset, limit=size)


def has_more(path: Path, offset: int) -> bool:
    """Return True if the file has a whole line after the byte offset `offset`."""
    return next(read(path, offset), None) is not None


def decoded(line: bytes) -> dict[str, Any]:
    """Return the event in a line of a journal as a dict.

    If the line is not a JSON object, or if a required field is missing or has the wrong type, return `{"kind": "unreadable"}`. Every event
    requires the fields `kind` and `time_ms`. `FIELDS` lists the further required fields of each known kind. An event of an unknown kind is
    returned as it is.
    """
    try:
        fields = dict(json.loads(line))
    except (ValueError, TypeError):
        return {"kind": UNREADABLE}
    types = {"kind": str, "time_ms": int, **FIELDS.get(str(fields.get("kind")), {})}
    is_whole = all(isinstance(fields.get(name), expected) for name, expected in types.items())
    return fields if is_whole else {"kind": UNREADABLE}


class Writer:
    """Appends events to a file. Each event is one `write` call, so that a kill can leave only the last line incomplete."""

    def __init__(self, path: Path, end: int) -> None:
        """Open the file for appending, and truncate it at `end`, the byte offset after its last whole line."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._descriptor, end)

    def append(self, fields: Mapping[str, Any]) -> None:
        """Append one event, given by its fields. Raises ValueError if a field is NaN or infinity.

        Raises OSError if the event does not fit on the disk; the file is then unchanged.
        """
        line = ENCODER.encode(fields).encode(errors="replace") + b"\n"
        written = os.write(self._descriptor, line)
        if written < len(line):
            os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_END) - written)
            raise OSError(f"only {written} of {len(line)} bytes of an event could be written: free space on the disk")

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
