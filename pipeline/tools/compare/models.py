"""Finds the models that a user names for a comparison, with everything that is recorded about them."""

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.section import flatten, formatted
from pipeline.core.untrusted import reason, shown
from pipeline.evaluate.reports import recorded
from pipeline.inference import model_file, tensor_file
from pipeline.inference.model_file import Manifest
from pipeline.inference.tensor_file import Tensors
from pipeline.tools.compare import dvc_cache
from pipeline.tracking import events, journal, run_description, subject
from pipeline.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import Run

EVALUATE = "evaluate"


@dataclass(frozen=True)
class Record:
    """The facts about a training that its run or a git revision records outside of the model file. Unknown facts are missing.

    `origin` names the record, such as "run run-000001-...". `params` has the parameters of the sections `source` and `evaluate` by dotted
    key, `provenance` the facts of `provenance.facts`, `splits` the digest of each split, and `metrics` the metrics of the exported weights.
    """

    origin: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedModel:
    """A model to compare. `name` is the user's name for it, `digest` the SHA-256 of the model file, and `manifest` the file's metadata.

    `weights` are the tensors of the file, and `record` what is recorded outside of it. The tensors are mapped from the file, so the system can
    drop them from memory at any time: the weights of many models take no more memory than there is to spare.
    """

    name: str
    digest: str
    manifest: Manifest
    weights: Tensors
    record: Record


def read(name: str, paths: Paths, environment: Environment) -> ComparedModel:
    """Return the model that `name` denotes: a model file, a run, a model in MLflow, a DVC experiment or a git revision.

    Nothing in the checkout is written. Raises Refusal if there is nothing with this name, or if its model file is missing or damaged.
    """
    if is_path(name, paths) or name.startswith("models:") or subject.RUN_ID.fullmatch(name):
        return read_file(name, paths, environment)
    if folder := subject.journal_named(name, environment.root):
        model = read_file(name, paths, environment)
        return replace(model, record=of_journal(folder, model.manifest.step))
    if commit := dvc_cache.resolved(name, paths.top):
        return read_revision(name, commit, paths, environment)
    known = journal.journals(environment.root)
    newest = f", such as the newest run, {known[-1].name}" if known else ""
    raise Refusal(f"{shown(name)}: is not a model file, run, DVC experiment or git revision of this checkout: give one of them{newest}")


def is_path(name: str, paths: Paths) -> bool:
    return Path(name).is_file() or Path(name).suffix == paths.model.suffix


def read_file(name: str, paths: Paths, environment: Environment) -> ComparedModel:
    """Return the model that a path, a run or a name in MLflow denotes.

    Its facts come from the newest run in this checkout that has the same model file. If there is no such run, the facts of a run or of a name
    in MLflow come from MLflow, and those of a path from `metrics/evaluate.json` if it has the scores of this file. Raises Refusal like `read`.
    """
    with subject.located(name, paths, environment) as path:
        model = parsed(name, path)
        if folder := journal.find(environment.root, model.digest):
            return replace(model, record=of_journal(folder, model.manifest.step))
        if not is_path(name, paths):
            return replace(model, record=of_mlflow(name, environment))
        return replace(model, record=of_results(path, paths))


def parsed(name: str, path: Path) -> ComparedModel:
    """Return the model in the file `path`, without facts. `name` is the user's name for it. The network is not built.

    Raises Refusal if the file is not a model file, or is damaged.
    """
    weights, metadata = tensor_file.load(path, header_bytes=model_file.HEADER_BYTES)
    with model_file.refusing(path):
        manifest = Manifest.model_validate(metadata)
    return ComparedModel(name, files.digest(path), manifest, weights, Record())


def of_results(model: Path, paths: Paths) -> Record:
    """Return the scores in `metrics/evaluate.json` if they belong to the file `model`; otherwise return empty Record."""
    try:
        return Record(metrics=run_description.test_metrics(recorded.scores(paths.metrics / "evaluate.json", model)))
    except Refusal:
        return Record()


def of_journal(folder: Path, step: int) -> Record:
    """Return what the journal in `folder` recorded. The metrics are those at `step`, the training step of the exported weights."""
    params: dict[str, str] = {}
    provenance: dict[str, str] = {}
    splits: dict[str, str] = {}
    metrics: dict[str, float] = {}
    for event in events.read(folder / events.EVENTS):
        fields = event.fields
        if event.kind in ("start", "reopen"):
            if fields["stage"] != EVALUATE:
                provenance |= {key: value for key, value in fields.get("provenance", {}).items() if isinstance(value, str)}
                params |= section_of(fields["params"], "source")
            params |= section_of(fields["tags"], EVALUATE)
            splits |= {split_named(each["name"]): each["digest"] for each in fields.get("datasets", [])}
        elif event.kind == "metrics" and fields["step"] == step:
            metrics |= scores_of(fields["values"])
    return Record(f"run {folder.name}", params, provenance, splits, metrics)


def of_mlflow(name: str, environment: Environment) -> Record:
    """Return what the run of a model in MLflow recorded. Raises Refusal if MLflow does not answer."""
    store = Store(environment)
    try:
        with redirect_stdout(sys.stderr):
            run = store.client.get_run(str(subject.find_logged(name, store).source_run_id))
            with tempfile.TemporaryDirectory() as folder:
                provenance = read_provenance(store, run, folder)
    except Refusal:
        raise
    except Exception as error:  # whatever MLflow raises
        raise Refusal(f"{shown(name)}: could not read its run from MLflow: {store.address.redacted(reason(error))}") from None
    inputs = run.inputs.dataset_inputs if run.inputs else []
    splits = {split_named(each.dataset.name): json.loads(each.dataset.profile or "{}").get("digest", "") for each in inputs}
    params = section_of(run.data.params, "source") | section_of(run.data.tags, EVALUATE)
    return Record(f"run {run.info.run_name} in MLflow", params, provenance, splits, scores_of(run.data.metrics))


def read_provenance(store: Store, run: "Run", folder: str) -> dict[str, str]:
    """Return the provenance that the stage `train` logged to `run`; {} if there is none. The file is downloaded to `folder`."""
    if "train.json" not in {Path(each.path).name for each in store.client.list_artifacts(run.info.run_id, "provenance")}:
        return {}
    path = Path(store.client.download_artifacts(run.info.run_id, "provenance/train.json", folder))
    return {key: value for key, value in json.loads(path.read_bytes()).items() if isinstance(value, str)}


def section_of(params: Mapping[str, Any], section: str) -> dict[str, str]:
    return {key: formatted(value) for key, value in params.items() if key.startswith(f"{section}.")}


def split_named(dataset: str) -> str:
    """Return the split in the name of a dataset, such as "test" of "digits test"."""
    return dataset.rpartition(" ")[2]


def scores_of(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if key.startswith((f"{TEST}/", f"{VALID}/"))}


def read_revision(name: str, commit: str, paths: Paths, environment: Environment) -> ComparedModel:
    """Return the model of a git revision: the file in DVC's cache that its `dvc.lock` names, with the revision's parameters and metrics.

    The properties of the machine are those of the run here with the same model file, if there is one. Raises Refusal if the revision has no
    `dvc.lock`, or if the model file is not in the cache and no remote of DVC has it.
    """
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        revision = dvc_cache.fetch(name, commit, paths, Path(folder))
        model = parsed(name, revision.model)
        folder_of_run = journal.find(environment.root, model.digest)
    run = of_journal(folder_of_run, model.manifest.step) if folder_of_run else Record()
    sections = {key: revision.params[key] for key in ("source", EVALUATE) if key in revision.params}
    record = Record(
        origin=f"revision {commit[:12]}",
        params={key: formatted(value) for key, value in flatten(sections).items()},
        provenance={**run.provenance, "git.commit": commit, "git.difference": "none"},
        splits={**run.splits, **revision.splits},
        metrics={**run.metrics, **revision.metrics(model.digest)},
    )
    return replace(model, name=name, record=record)
