"""Finds the model file that a user names: by its path, or by the run that trained it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.io import files
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment
from pipeline.tracking import cursor, events, journal


class Record(NamedTuple):
    """What the journal of a run records: SHA-256 of the model file, provenance of the training, and test scores by metric."""

    name: str
    model_digest: str
    provenance: Mapping[str, Any]
    scores: Mapping[str, float]


class Subject(NamedTuple):
    """What a user named: a model file, or the model file of a run and the record of this run."""

    model: Path
    record: Record | None = None


def find(name: str, paths: Paths, environment: Environment) -> Subject:
    """Return the model file or the run that `name` denotes. Raises Refusal if there is none, or if the run has no model.

    A run is denoted by the path or name of its journal, the folder that records it, by the last part of that name, or by its run id in
    MLflow. Its model is the copy in the journal. If that copy is damaged, or was deleted because MLflow has the model, the checkout's model
    file is taken.
    """
    path, known = Path(name), journal.journals(environment.root)
    if path.is_file() or path.suffix == paths.model.suffix:
        return Subject(path)
    for folder in known:
        ids = {str(store.get("run_id")) for store in cursor.read_stores(folder).values() if isinstance(store, Mapping)}
        if name in {folder.name, journal.short_name(folder.name), *ids} or folder.resolve() == path.resolve():
            record, copy = read(folder), folder / paths.model.name
            is_whole = copy.is_file() and files.digest(copy) == record.model_digest
            return Subject(copy if is_whole else paths.model, record)
    newest = f"the newest run is {known[-1].name}" if known else "this folder has no runs"
    raise Refusal(f"{name}: is neither a file nor a run in {journal.journals_folder(environment.root)}: {newest}")


def read(folder: Path) -> Record:
    """Return the record of the run with the journal `folder`. Raises Refusal if its training did not finish, so that it has no model."""
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
        raise Refusal(f"{folder.name}: this run has no model, because its training did not finish: run `dvc repro`") from None
    return Record(folder.name, digest, provenance, scores)
