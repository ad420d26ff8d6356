"""What a run is told about: which facts, files and numbers of a stage go into the journal."""

from collections.abc import Mapping
from typing import Any

from pipeline import files
from pipeline.environment import Environment
from pipeline.params.document import Document
from pipeline.params.prepare import PrepareParams
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.tracking import provenance
from pipeline.tracking.facts import Facts
from pipeline.tracking.run import Run

FIGURES = ("confusion.png", "reliability.png", "mistakes.png", "history.png", "confusion.csv", "reliability.csv")
SOURCE = {"mlflow.source.name": "python -m pipeline", "mlflow.source.type": "LOCAL"}
PARAMS = tuple(dict.fromkeys((*PrepareParams.model_fields, *TrainParams.model_fields)))


def of_training(paths: Paths, environment: Environment, *, splits: Mapping[str, int], dataset: Mapping[str, Any], digest: str) -> Facts:
    """A run begins: all parameters that led to the model, the data, and where it comes from."""
    document = Document.read(paths.params).data
    model, source = document["model"]["name"], document["source"]["name"]
    architecture = document["model"].get("architecture", model)
    counts = ", ".join(f"{count} {split}" for split, count in splits.items())
    return Facts(
        params=provenance.flat({name: document[name] for name in PARAMS if name in document}),
        tags=SOURCE | provenance.tags(environment) | evaluation_tags(document),
        dataset_name=source,
        dataset_digest=digest,
        dataset={**dataset, "samples": dict(splits)},
        description=f"**{architecture}** trained on **{source}** ({counts} samples), by `python -m pipeline train`.",
        name=f"{architecture}-{source}",
    )


def of_evaluation(paths: Paths, environment: Environment) -> Facts:
    """A run is added to, whose commit stays that of its training; where it is not known here, this is how it is described."""
    document = Document.read(paths.params).data
    known = provenance.tags(environment)
    commit = {"evaluate.git.commit": known["mlflow.source.git.commit"], "evaluate.git.dirty": known["pipeline.git.dirty"]}
    return Facts(
        params=provenance.flat({name: document[name] for name in PARAMS if name in document}),
        tags=commit | evaluation_tags(document),
        dataset_name=str(document["source"]["name"]),
        description="A model whose training this store has not seen, such as one restored from DVC's run cache.",
        name=f"{document['model']['name']}-{document['source']['name']}",
    )


def evaluation_tags(document: Mapping[str, Any]) -> dict[str, str]:
    """As tags, because MLflow's params cannot change when the same model is evaluated otherwise."""
    return {name: str(value) for name, value in provenance.flat({"evaluate": document.get("evaluate", {})}).items()}


def add_training(run: Run, paths: Paths, inputs: Mapping[str, Any]) -> None:
    """The files of a finished training."""
    run.tags({f"inputs.{name}": str(inputs[name]) for name in ("data", "code", "lock")})
    run.tags({"inputs.fingerprint": files.canonical(inputs["fingerprint"])})
    for path in (paths.params, paths.lock, paths.dvc_lock):
        if path.exists():
            run.artifact(path)
    run.artifact(paths.plots / "history.csv", folder="plots")
    run.model(paths.model)


def add_evaluation(run: Run, paths: Paths, *, step: int, scores: Mapping[str, float]) -> None:
    """The scores, at the step whose weights were scored, and the figures."""
    run.metrics(step, scores)
    for name in FIGURES:
        if (paths.plots / name).exists():
            run.artifact(paths.plots / name, folder="plots")
    if paths.dvc_lock.exists():
        run.artifact(paths.dvc_lock)
