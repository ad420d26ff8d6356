"""How far a journal has been delivered, store by store, durably in `delivered.json`."""

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
    """`offset` and `system_offset` are bytes of the two journals; `status` is what MLflow was told last.

    `redo` is where the first event begins that MLflow did not take though it answered: a later attempt begins again there.
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
        """Nothing delivered, where nothing readable says otherwise or the journal is another: MLflow ignores the repetition."""
        try:
            cursor = cls(**read_stores(folder)[store])
        except (KeyError, TypeError):
            return cls()
        # a journal that a backup brought back is shorter, or has other lines by now: its offsets mean nothing
        return cursor if cursor.seal == cursor.sealed(folder) else cls(cursor.run_id, cursor.experiment_id)

    def sealed(self, folder: Path) -> str:
        return events.seal(folder / events.EVENTS, self.offset) + events.seal(folder / SYSTEM, self.system_offset)

    def begin_again(self) -> None:
        """From the first event that was set aside; the lines of the machine's load are few, and go again too."""
        if self.redo is not None:
            self.offset, self.system_offset, self.redo = self.redo, 0, None

    def set_aside(self) -> None:
        """What begins at `offset` is left for later."""
        self.redo = self.offset if self.redo is None else self.redo

    @property
    def first_left(self) -> int:
        return self.offset if self.redo is None else self.redo

    def save(self, folder: Path, store: str) -> None:
        self.seal = self.sealed(folder)
        files.write_json(folder / DELIVERED, read_stores(folder) | {store: asdict(self)})

    def is_complete(self, folder: Path) -> bool:
        """Whether nothing is left to deliver of a journal whose writer is gone."""
        return (
            self.status not in {"", "RUNNING"}
            and self.redo is None
            and self.offset >= events.whole_bytes(folder / events.EVENTS)
            and self.system_offset >= events.whole_bytes(folder / SYSTEM)
        )


def read_stores(folder: Path) -> dict[str, Any]:
    try:
        stores = json.loads((folder / DELIVERED).read_bytes())
    except (OSError, ValueError):
        return {}
    return stores if isinstance(stores, dict) else {}


def is_pending(folder: Path) -> bool:
    """Whether no store has all of the journal: one that was delivered elsewhere is not sent to every other store as well."""
    return not any(Cursor.load(folder, store).is_complete(folder) for store in read_stores(folder))
