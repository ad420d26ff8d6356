"""The delivery progress of a journal for each store, kept on disk in `delivered.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.tracking import events

DELIVERED = "delivered.json"
SYSTEM = "system.jsonl"


@dataclass
class Cursor:
    """The delivery progress of a journal for one store.

    `offset` and `system_offset` are the bytes delivered of `events.jsonl` and `system.jsonl`. `status` is the run status last sent to
    MLflow. `redo` is the offset of the first event that failed while MLflow was reachable; a later attempt starts again there.
    `seal` is a digest that detects a replaced journal.
    """

    run_id: str | None = None
    experiment_id: str | None = None
    offset: int = 0
    system_offset: int = 0
    status: str = ""
    time_ms: int = 0
    redo: int | None = None
    seal: str = ""

    @classmethod
    def load(cls, folder: Path, store: str) -> "Cursor":
        """Return the saved cursor, or one at offset 0 where none is readable or the journal was replaced.

        Delivering events again is safe: MLflow ignores repeated metric points.
        """
        try:
            cursor = cls(**read_stores(folder)[store])
        except (KeyError, TypeError):
            return cls()
        # A journal restored from a backup is shorter or has other lines, so the saved offsets are invalid.
        return cursor if cursor.seal == cursor.sealed(folder) else cls(cursor.run_id, cursor.experiment_id)

    def sealed(self, folder: Path) -> str:
        """Return the digest of the last delivered bytes of both files."""
        return events.seal(folder / events.EVENTS, self.offset) + events.seal(folder / SYSTEM, self.system_offset)

    def begin_again(self) -> None:
        """Move back to the first event that was set aside. All system metrics are sent again too; they are few."""
        if self.redo is not None:
            self.offset, self.system_offset, self.redo = self.redo, 0, None

    def set_aside(self) -> None:
        """Mark the event at `offset` for a later attempt, unless an earlier event is marked."""
        self.redo = self.offset if self.redo is None else self.redo

    @property
    def first_left(self) -> int:
        """Return the offset of the first event that is not delivered."""
        return self.offset if self.redo is None else self.redo

    def save(self, folder: Path, store: str) -> None:
        """Write this cursor to `delivered.json`, leaving the other stores' cursors as they are."""
        self.seal = self.sealed(folder)
        files.write_json(folder / DELIVERED, read_stores(folder) | {store: asdict(self)})

    def is_complete(self, folder: Path) -> bool:
        """Return True if the run has ended and all events are delivered."""
        return (
            self.status not in {"", "RUNNING"}
            and self.redo is None
            and self.offset >= events.whole_bytes(folder / events.EVENTS)
            and self.system_offset >= events.whole_bytes(folder / SYSTEM)
        )


def read_stores(folder: Path) -> dict[str, Any]:
    """Return the saved cursors by store key; empty where `delivered.json` is missing or damaged."""
    try:
        stores = json.loads((folder / DELIVERED).read_bytes())
    except (OSError, ValueError):
        return {}
    return stores if isinstance(stores, dict) else {}


def is_pending(folder: Path) -> bool:
    """Return True if no store has the complete journal. A journal that one store has completely is not sent to others."""
    return not any(Cursor.load(folder, store).is_complete(folder) for store in read_stores(folder))
