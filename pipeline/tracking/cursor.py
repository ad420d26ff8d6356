"""The delivery progress of a journal for each store, saved in the journal's `delivered.json`."""

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
    """The delivery progress of a journal for one store.

    `offsets` has the number of delivered bytes of `events.jsonl` and of `system.jsonl`. `time_ms` is the time of the last delivered event.
    `has_ended` is True if MLflow has the final status of the run, and the journal's copies of files are removed.
    `has_failed` is True if MLflow failed to store an event: `offsets` stays before this event. Events after it may have been sent, and will
    be sent again.
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
        """Return the cursor saved under the store key `store`; a cursor at the beginning of the journal if none can be read.

        If no line of the journal ends at a saved offset, as after restoring a backup, the cursor keeps the saved ids of run and experiment
        but starts at the beginning. Delivering events again is safe, because MLflow ignores repeated metric points.
        """
        try:
            cursor = cls(**read_stores(folder)[store])
            is_same_journal = cursor.marks == cursor._find_marks(folder)
        except (AttributeError, KeyError, OSError, TypeError):
            return cls()
        return cursor if is_same_journal else cls(cursor.run_id, cursor.experiment_id)

    def save(self, folder: Path, store: str) -> None:
        """Write this cursor to `delivered.json`. The cursors of other stores in this file are unchanged."""
        self.marks = self._find_marks(folder)
        files.write_json(folder / DELIVERED, read_stores(folder) | {store: asdict(self)})

    def is_complete(self, folder: Path) -> bool:
        """Return True if MLflow has the final status of the run and all events."""
        return self.has_ended and not any(has_more(folder / name, offset) for name, offset in self.offsets.items())

    def _find_marks(self, folder: Path) -> dict[str, str]:
        """Return, for each file of the journal, a digest of the last `MARKED_BYTES` bytes before its offset."""
        marks = {}
        for name in filter(self.offsets.get, (EVENTS, SYSTEM)):
            begin = max(0, self.offsets[name] - MARKED_BYTES)
            with (folder / name).open("rb") as file:
                file.seek(begin)
                marks[name] = hashlib.sha256(file.read(self.offsets[name] - begin)).hexdigest()
        return marks


def read_stores(folder: Path) -> dict[str, Any]:
    """Return the saved cursors by store key; an empty dict if `delivered.json` is missing or damaged."""
    try:
        stores = json.loads((folder / DELIVERED).read_bytes())
    except (OSError, ValueError):
        return {}
    return stores if isinstance(stores, dict) else {}


def is_pending(folder: Path) -> bool:
    """Return True if the journal has begun and no store has all of it. A journal that one store has completely is not sent to another."""
    return has_more(folder / EVENTS, 0) and not any(Cursor.load(folder, store).is_complete(folder) for store in read_stores(folder))
