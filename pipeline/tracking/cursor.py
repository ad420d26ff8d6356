"""The delivery progress of a journal for each store, saved in the journal's `delivered.json`."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.tracking.events import EVENTS, SYSTEM, has_more

DELIVERED = "delivered.json"


@dataclass
class Cursor:
    """The delivery progress of a journal for one store.

    `run_id` and `experiment_id` are those of the MLflow run, or None before it is found or created. `offsets` are the numbers of bytes of
    `events.jsonl` and `system.jsonl` that are delivered. `time_ms` is the time of the last delivered event. `has_ended` is True if MLflow
    has the final status of the run.
    """

    run_id: str | None = None
    experiment_id: str | None = None
    offsets: dict[str, int] = field(default_factory=lambda: {EVENTS: 0, SYSTEM: 0})
    time_ms: int = 0
    has_ended: bool = False

    @classmethod
    def load(cls, folder: Path, store: str) -> "Cursor":
        """Return the saved cursor for the store with this key, or a cursor at the beginning of the journal.

        The beginning is used if no saved cursor can be read, or if the journal is shorter than the saved offset, as after restoring a
        backup. Delivering events again is safe, because MLflow ignores repeated metric points.
        """
        try:
            cursor = cls(**read_stores(folder)[store])
            is_beyond = cursor.offsets[EVENTS] > (folder / EVENTS).stat().st_size
        except (KeyError, OSError, TypeError):
            return cls()
        return cls(cursor.run_id, cursor.experiment_id) if is_beyond else cursor

    def save(self, folder: Path, store: str) -> None:
        """Write this cursor to `delivered.json`. The cursors of other stores in this file are unchanged."""
        files.write_json(folder / DELIVERED, read_stores(folder) | {store: asdict(self)})

    def is_complete(self, folder: Path) -> bool:
        """Return True if MLflow has the final status of the run and all events."""
        return self.has_ended and not any(has_more(folder / name, offset) for name, offset in self.offsets.items())


def read_stores(folder: Path) -> dict[str, Any]:
    """Return the saved cursors by store key; an empty dict if `delivered.json` is missing or damaged."""
    try:
        stores = json.loads((folder / DELIVERED).read_bytes())
    except (OSError, ValueError):
        return {}
    return stores if isinstance(stores, dict) else {}


def is_pending(folder: Path) -> bool:
    """Return True if no store has the complete journal. A journal that one store has completely is not delivered to any other."""
    return not any(Cursor.load(folder, store).is_complete(folder) for store in read_stores(folder))
