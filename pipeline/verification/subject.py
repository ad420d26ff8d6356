"""What is to be verified: a model file, or a run of the journal and the file of its model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment
from pipeline.tracking import cursor, events, journal

MODEL_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Record:
    """What the journal holds of a run."""

    name: str
    model_digest: str
    provenance: Mapping[str, Any]
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Subject:
    model: Path
    record: Record | None = None

    @classmethod
    def named(cls, name: str, paths: Paths, environment: Environment) -> "Subject":
        """A model file by its path, a run by its journal, the end of its name, or its id in MLflow. Raises Refusal for anything else."""
        path = Path(name)
        if path.is_file() or path.suffix == MODEL_SUFFIX:
            return cls(path)
        folder = find(name, environment)
        record = read(folder)
        return cls(model_of(folder, record, paths), record)


def find(name: str, environment: Environment) -> Path:
    """The journal of a run."""
    known, path = journal.journals(environment.root), Path(name).resolve()
    for folder in known:
        ids = {str(store.get("run_id")) for store in cursor.read_stores(folder).values() if isinstance(store, Mapping)}
        if name in {folder.name, journal.mark(folder.name), *ids} or folder.resolve() == path:
            return folder
    newest = f"the newest run is {known[-1].name}" if known else "it holds no run"
    raise Refusal(f"{name}: is no file, and no run of the journal in {journal.shelf(environment.root)}: {newest}")


def read(folder: Path) -> Record:
    """Where the training comes from, and the scores as they were told last."""
    provenance: dict[str, Any] = {}
    scores: dict[str, float] = {}
    for event in events.read(folder / events.EVENTS):
        if event.fields.get("stage") != "evaluate":
            provenance |= event.fields.get("provenance", {})
        values = event.fields.get("values", {}) if event.kind == "metrics" else {}
        scores |= {name: float(value) for name, value in values.items() if name.startswith("test/")}
    try:
        digest = (folder / journal.MODEL_DIGEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise Refusal(f"{folder.name}: this run has no model: its training has not come to its end: run `dvc repro`") from None
    return Record(folder.name, digest, provenance, scores)


def model_of(folder: Path, record: Record, paths: Paths) -> Path:
    """The journal keeps a copy until MLflow has the model; from then on the file is the checkout's, be it another."""
    copy = folder / f"model{MODEL_SUFFIX}"
    return copy if copy.is_file() and files.digest(copy) == record.model_digest else paths.model
