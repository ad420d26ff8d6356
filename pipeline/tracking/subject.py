"""Finds the model file that a user names: by its path, or by the run that trained it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.paths import Paths
from pipeline.core.refusal import Refusal
from pipeline.tracking import events, journal

FEWEST_CHARACTERS = 4
"""The length of the shortest beginning or end of a journal's name that denotes the run."""
MOST_CANDIDATES = 5
"""The number of runs that the message about an ambiguous name lists at most."""


class Record(NamedTuple):
    """What a journal recorded about its run. `name` is the name of the journal, and `model_digest` the SHA-256 of the model file.

    `provenance` has facts about the training, such as the git commit. `scores` are the test metrics by name; {} if there was no evaluation.
    """

    name: str
    model_digest: str
    provenance: Mapping[str, Any]
    scores: Mapping[str, float]


class Subject(NamedTuple):
    """What a user named: a model file, or a run. `model` is the path of the model file. `record` is what the run's journal recorded, or
    None if the user named a file.
    """

    model: Path
    record: Record | None = None


def find(name: str, paths: Paths, environment: Environment) -> Subject:
    """Return the model file or the run that `name` denotes. A name that ends in `.safetensors` is a model file, even if the file does not
    exist.

    A run is denoted by the path or the name of its journal, by a unique beginning or end of this name of at least FEWEST_CHARACTERS
    characters, or by its run id in MLflow. The model of a run is the copy in its journal. If this copy is damaged, or was removed because
    MLflow has the model, the path of the checkout's model file is returned, which may be another model. Raises Refusal if there is neither a
    file nor a run with this name, if several runs have it, or if the run has no model.
    """
    path = Path(name)
    if path.is_file() or path.suffix == paths.model.suffix:
        return Subject(path)
    if folder := journal_named(name, environment.root):
        record, copy = read(folder), folder / paths.model.name
        is_whole = copy.is_file() and files.digest(copy) == record.model_digest
        return Subject(copy if is_whole else paths.model, record)
    known = journal.journals(environment.root)
    newest = f"give a model file or a run, such as the newest, {known[-1].name}" if known else "give a model file, as there is no run"
    raise Refusal(f"{name}: is neither a file nor a run in {journal.journals_folder(environment.root)}{minimum(name)}: {newest}")


def journal_of(name: str, environment: Environment) -> Path:
    """Return the journal of the run that `name` denotes, as in `find`. Raises Refusal if there is none."""
    if folder := journal_named(name, environment.root):
        return folder
    known = journal.journals(environment.root)
    newest = f"give a run, such as the newest, {known[-1].name}" if known else "there is none yet"
    raise Refusal(f"{name}: is no run in {journal.journals_folder(environment.root)}{minimum(name)}: {newest}")


def minimum(name: str) -> str:
    """Return a note for a message about an unknown run: how long a part of a run's name must be. Return "" if `name` is long enough."""
    return f" (a part of a run's name must have at least {FEWEST_CHARACTERS} characters)" if len(name) < FEWEST_CHARACTERS else ""


def journal_named(name: str, root: Path) -> Path | None:
    """Return the journal of the run that `name` denotes, as in `find`; None if there is none. Raises Refusal if several runs have the name."""
    folders = journal.journals(root)
    for folder in folders:
        if name in {folder.name, *run_ids(folder)} or folder.resolve() == Path(name).resolve():
            return folder
    # run-100000 is the number of one run, although run-1000000 begins with it, too
    whole_part = [folder for folder in folders if folder.name.startswith(f"{name}-") or folder.name.endswith(f"-{name}")]
    some_part = [folder for folder in folders if folder.name.startswith(name) or folder.name.endswith(name)]
    matching = whole_part or some_part if len(name) >= FEWEST_CHARACTERS else []
    if len(matching) > 1:
        newest = ", ".join(folder.name for folder in matching[: -MOST_CANDIDATES - 1 : -1])
        more = ", ..." if len(matching) > MOST_CANDIDATES else ""
        raise Refusal(f"{name}: is the beginning or end of the names of {len(matching)} runs ({newest}{more}): write more of the name")
    return matching[0] if matching else None


def run_ids(folder: Path) -> list[str]:
    """Return the id of the journal's run in each MLflow store to which it was sent."""
    return [str(store["run_id"]) for store in events.read_stores(folder).values() if isinstance(store, Mapping) and store.get("run_id")]


def read(folder: Path) -> Record:
    """Return what the journal in `folder` recorded. Raises Refusal if the journal has no model: the training did not finish, or it was a
    trial of a search, which keeps the model of its best trial.
    """
    provenance: dict[str, Any] = {}
    scores: dict[str, float] = {}
    search = None
    for event in events.read(folder / events.EVENTS):
        search = search or event.fields.get("tags", {}).get(journal.SEARCH_TAG)
        if event.fields.get("stage") != "evaluate":
            provenance |= event.fields.get("provenance", {})
        values = event.fields.get("values", {}) if event.kind == "metrics" else {}
        scores |= {name: float(value) for name, value in values.items() if name.startswith("test/")}
    try:
        digest = (folder / journal.MODEL_DIGEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        if search:
            raise Refusal(
                f"{folder.name}: this run has no model: it is a trial of the search {search}, which keeps that of the best trial: "
                "repeat the search with --keep-models, or train this one again by `python -m pipeline trial FOLDER`"
            ) from None
        raise Refusal(f"{folder.name}: this run has no model, because its training did not finish: run `dvc repro`") from None
    return Record(folder.name, digest, provenance, scores)
