"""Finds the models that a user names for a comparison, and what is recorded about them."""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import PreparedRecord
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.section import formatted
from pipeline.evaluate.reports import recorded
from pipeline.inference import model_file, tensor_file
from pipeline.inference.model_file import Manifest
from pipeline.inference.tensor_file import Tensors
from pipeline.runs import find, run_description
from pipeline.runs.mlflow.store import Store
from pipeline.runs.record import EVALUATE, Record, run_of_model

COMMIT_TAG = "mlflow.source.git.commit"


@dataclass(frozen=True)
class Facts:
    """The facts about a training that its run or a git revision records outside of the model file. Unknown facts are missing.

    `origin` names the run or revision, such as "run run-000001-...". `params` has the parameters of the sections `source` and `evaluate` by dotted
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

    `weights` are the tensors of the file, and `facts` what is recorded outside of it. The tensors are mapped from the file, so the system can
    drop them from memory at any time: the weights of many models take no more memory than there is to spare.
    """

    name: str
    digest: str
    manifest: Manifest
    weights: Tensors
    facts: Facts
    run: Record | None = None
    """The named run, or the newest one in this checkout with the same model file; None if there is none."""


def read(name: str, paths: Paths, environment: Environment) -> ComparedModel:
    """Return the model that `name` denotes: a model file, a run, a model in MLflow, a DVC experiment or a git revision.

    Its facts come from the run that `name` denotes, or else from the newest run in this checkout that has the same model file. If there is
    none, the facts of a name in MLflow come from MLflow, those of a path from `metrics/evaluate.json` if it has the scores of this file, and a
    revision has its commit alone. Nothing in the checkout is written. Raises Refusal if there is nothing with this name, or if its model file is missing or damaged.
    """
    with find.located(name, paths, environment) as found:
        weights, metadata = tensor_file.load(found.path, header_bytes=model_file.HEADER_BYTES)
        with model_file.refusing(found.path):
            manifest = Manifest.model_validate(metadata)  # the code of this checkout may not be able to build it
        digest = files.digest(found.path)
        run = found.run or run_of_model(environment.root, digest)
        if run:
            facts = of_run(run, manifest.step)
        elif found.commit:
            facts = Facts(f"revision {found.commit[:12]}", provenance={"git.commit": found.commit, "git.difference": "none"})
        else:
            facts = of_results(found.path, paths) if found.is_file else of_mlflow(name, environment)
        return ComparedModel(name, digest, manifest, weights, facts, run)


def have_same(split: str, first: ComparedModel, other: ComparedModel) -> bool:
    """Return True if both models were trained on the same data, or their runs recorded the same split. Without tracking, there is no record."""
    known = ((each.manifest.inputs.get("data"), each.facts.splits.get(split)) for each in (first, other))
    return any(one is not None and one == two for one, two in zip(*known, strict=True))


def of_results(model: Path, paths: Paths) -> Facts:
    """Return the scores in `metrics/evaluate.json` if they belong to the file `model`; otherwise return empty Facts."""
    try:
        return Facts(metrics=run_description.test_metrics(recorded.scores(paths.metrics / "evaluate.json", model)))
    except Refusal:
        return Facts()


def of_run(run: Record, step: int) -> Facts:
    """Return what `run` recorded. The metrics are those at `step`, the training step of the exported weights."""
    params, splits = dict[str, str](), dict[str, str]()
    for fields in run.begun:
        params |= section_of(fields["params"], "source") if fields["stage"] != EVALUATE else {}
        params |= section_of(fields["tags"], EVALUATE)
        splits |= {split_named(each["name"]): each["digest"] for each in fields.get("datasets", [])}
    provenance = {key: value for key, value in run.provenance.items() if isinstance(value, str)}
    return Facts(f"run {run.name}", params, provenance, splits, run.metrics(f"{TEST}/", f"{VALID}/", step=step))


def of_mlflow(name: str, environment: Environment) -> Facts:
    """Return what the run of a model in MLflow recorded, without its validation. Raises Refusal if MLflow does not answer."""
    store = Store(environment)
    with store.refusing(name, "could not read its run from MLflow", ": check MLFLOW_TRACKING_URI"), redirect_stdout(sys.stderr):
        run = store.client.get_run(str(find.find_logged(name, store).source_run_id))
    inputs = run.inputs.dataset_inputs if run.inputs else []
    splits = {split_named(each.dataset.name): json.loads(each.dataset.profile or "{}").get("digest", "") for each in inputs}
    params = section_of(run.data.params, "source") | section_of(run.data.tags, EVALUATE)
    metrics = {metric: value for metric, value in run.data.metrics.items() if metric.startswith(f"{TEST}/")}
    commit = {"git.commit": run.data.tags[COMMIT_TAG]} if COMMIT_TAG in run.data.tags else {}
    return Facts(f"run {run.info.run_name} in MLflow", params, commit, splits, metrics)


def section_of(params: Mapping[str, Any], section: str) -> dict[str, str]:
    return {key: formatted(value) for key, value in params.items() if key.startswith(f"{section}.")}


def split_named(dataset: str) -> str:
    """Return the split in the name of a dataset, such as "test" of "digits test"."""
    return dataset.rpartition(" ")[2]


def split_digests(record: PreparedRecord) -> dict[str, str]:
    """Return the digest of each split of prepared data, as a run records it."""
    return {name: files.digest_of([split.inputs_digest, split.targets_digest]) for name, split in record.splits.items()}
