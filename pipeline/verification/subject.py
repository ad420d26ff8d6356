"""The subject of a verification: a model file, or a run in the journal with its model file."""

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
    """The record of a run in its journal: digest of the model file, provenance of the training, and test scores."""

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
        """Return the subject for a model file's path, or for a run's journal folder, name, last part of the name, or MLflow run id.

        Raises Refusal where nothing matches, or where the run has no model.
        """
        path = Path(name)
        if path.is_file() or path.suffix == MODEL_SUFFIX:
            return cls(path)
        folder = find(name, environment)
        record = read(folder)
        return cls(model_of(folder, record, paths), record)


def find(name: str, environment: Environment) -> Path:
    """Return the journal folder of a run. Raises Refusal where no run matches."""
    known, path = journal.journals(environment.root), Path(name).resolve()
    for folder in known:
        ids = {str(store.get("run_id")) for store in cursor.read_stores(folder).values() if isinstance(store, Mapping)}
        if name in {folder.name, journal.short_name(folder.name), *ids} or folder.resolve() == path:
            return folder
    newest = f"the newest run is {known[-1].name}" if known else "it holds no run"
    raise Refusal(f"{name}: is no file, and no run of the journal in {journal.journals_folder(environment.root)}: {newest}")


def read(folder: Path) -> Record:
    """Return the provenance of the training and the latest value of each test score. Raises Refusal where the run has no model."""
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
    """Return the journal's copy of the model, or the checkout's model file where the copy is gone.

    The journal deletes its copy once MLflow has the model. The checkout's file may then be another model; `checks.of_run` compares it.
    """
    copy = folder / f"model{MODEL_SUFFIX}"
    return copy if copy.is_file() and files.digest(copy) == record.model_digest else paths.model
