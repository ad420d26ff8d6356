"""How much of a journal each MLflow store has received, saved in `delivered.json` in the journal's folder."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.tracking.events import EVENTS, SYSTEM, has_more

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

    `has_ended` is True once the run has its final status, and the journal's copies of the model and other files are removed. `has_failed`
    is True if MLflow temporarily failed to store an event. `offsets` then stay before this event, even if later events were sent.
    """

    run_id: str | None = None
    experiment_id: str | None = None
    offsets: dict[str, int] = field(default_factory=lambda: {EVENTS: 0, SYSTEM: 0})
    marks: dict[str, str] = field(default_factory=dict)
    time_ms: int = 0
    has_ended: bool = False
    has_failed: bool = False

    @classmethod
    def load(cls, folder: Path, store: str) -> "Cursor":
        """Return the cursor saved for the store whose `Address.key` is `store`. If none can be read, return a new one, with offsets of 0.

        If the bytes before a saved offset have changed, the journal was restored from a backup. Then the offsets are 0 as well, but the
        ids of run and experiment are the saved ones. Sending events again is safe: MLflow ignores repeated metric points.
        """
        try:
            cursor = cls(**read_stores(folder)[store])
            is_same_journal = cursor.marks == cursor._find_marks(folder)
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
