"""The events of a journal, one JSON object per line, appended by one `write` call; and how many of them each MLflow store has received.

Readers ignore an incomplete last line. The counts are saved in `delivered.json` in the journal's folder.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core import files

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
    "gap": {"missing": str},
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


DELIVERED = "delivered.json"
MARKED_BYTES = 1 << 16


@dataclass
class Cursor:
    """How much of a journal, the local record of a run, one MLflow store has received. `delivered.json` of the journal has a cursor for
    each store.

    `run_id` and `experiment_id` are those of the run in the store. `offsets` maps `events.jsonl` and `system.jsonl`, the journal's files of
    events, to the number of bytes that the store has received. `marks` maps each of them to a digest of the last bytes before its offset.
    If the digest no longer matches, the journal was restored from a backup. `time_ms` is the time of the last event received from
    `events.jsonl`.

    `has_ended` is True once the run has its final status, and the journal's copies of the model and other files are removed. `refused` has
    the reason for each thing that MLflow refuses, such as "metric a?b", so that it is left out. `replaced` is the id of the run that was
    sent before to this store, and then deleted there; None if there was none.
    """

    run_id: str | None = None
    experiment_id: str | None = None
    offsets: dict[str, int] = field(default_factory=lambda: {EVENTS: 0, SYSTEM: 0})
    marks: dict[str, str] = field(default_factory=dict)
    time_ms: int = 0
    has_ended: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    replaced: str | None = None

    @classmethod
    def load(cls, folder: Path, store: str) -> "Cursor":
        """Return the cursor saved for the store whose `Address.key` is `store`. If none can be read, return a new one, with offsets of 0.

        If the bytes before a saved offset have changed, the journal was restored from a backup. Then the offsets are 0 as well, but the
        ids of run and experiment are the saved ones. Sending events again is safe: MLflow ignores repeated metric points.
        """
        try:
            saved = read_stores(folder)[store]
            cursor = cls(**{name: saved[name] for name in cls.__dataclass_fields__ if name in saved})  # earlier versions saved others, too
            is_same_journal = cursor.marks == cursor._find_marks(folder)
            # earlier versions sent the events after a file that MLflow failed to store: begin again at the first such file
            cursor.offsets[EVENTS] = min([cursor.offsets[EVENTS], *saved.get("delayed", {}).values()])
        except (AttributeError, KeyError, OSError, TypeError):
            return cls()
        return cursor if is_same_journal else cls(cursor.run_id, cursor.experiment_id)

    def save(self, folder: Path, store: str) -> None:
        """Write this cursor to `delivered.json`, and keep those of other stores. `store` is the `Address.key` of this cursor's store."""
        self.marks = self._find_marks(folder)
        files.write_json(folder / DELIVERED, read_stores(folder) | {store: asdict(self)})

    def is_complete(self, folder: Path) -> bool:
        """Return True if the store has all events in the journal `folder` and the final status of the run."""
        return self.has_ended and not any(has_more(folder / name, offset) for name, offset in self.offsets.items())

    def _find_marks(self, folder: Path) -> dict[str, str]:
        """Return a digest for each file of events in the journal `folder`, by the file's name. Files with offset 0 are left out.

        The digest covers the last `MARKED_BYTES` bytes before the file's offset. Raises OSError if a file cannot be read.
        """
        marks = {}
        for name in filter(self.offsets.get, (EVENTS, SYSTEM)):
            begin = max(0, self.offsets[name] - MARKED_BYTES)
            with (folder / name).open("rb") as file:
                file.seek(begin)
                marks[name] = hashlib.sha256(file.read(self.offsets[name] - begin)).hexdigest()
        return marks


def read_stores(folder: Path) -> dict[str, Any]:
    """Return the content of `delivered.json`, a dict that maps the `Address.key` of each store to the fields of its cursor. If the file is
    missing or damaged, return {}.
    """
    try:
        stores = json.loads((folder / DELIVERED).read_bytes())
    except (OSError, ValueError):
        return {}
    return stores if isinstance(stores, dict) else {}


def is_pending(folder: Path) -> bool:
    """Return True if the journal in `folder` has an event, and no MLflow store has received the whole journal.

    Once one store has received the whole journal, the journal is not pending for any other store.
    """
    return has_more(folder / EVENTS, 0) and not any(Cursor.load(folder, store).is_complete(folder) for store in read_stores(folder))
