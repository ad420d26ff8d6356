"""Logs the trained model to MLflow. It maps raw images or texts to logits or probabilities, and MLflow loads it without pickle."""

import math
import re
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.raw_dataset import SPLITS, TEST, TRAIN, VALID
from pipeline.tracking.run_info import architecture
from pipeline.tracking.store import MODEL_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric, Run
    from torch import nn

    from pipeline.spec import Spec

Build = Callable[[Path], "tuple[nn.Module, Spec]"]
"""A function that loads a model file. It returns a module that maps stored inputs to outputs, and the description of both."""
LONGEST_LIST = 500


def log_model(client: "MlflowClient", run_id: str, path: Path, *, digest: str, step: int, points: "list[Metric]", build: Build) -> None:
    """Log the model file `path`, whose SHA-256 is `digest`, to the run `run_id`, unless the run already has the whole model.

    `step` is the training step of the weights, and `points` are the run's metrics at this step. Those of the train and valid splits are
    logged with the model. `add_scores` logs those of the test split, whose dataset the run has only once the model is evaluated. If an
    earlier attempt was interrupted, complete the logged model that it began.

    Raises LookupError if `path` is missing, because another store has received it and it was then removed. Passes on the exceptions of
    `build`, which loads the model file, and of MLflow.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    from pipeline.tracking import saved_model  # late: it imports numpy, and most deliveries have no model

    run = client.get_run(run_id)
    model = find_model(client, run, digest)
    if model and model.status == LoggedModelStatus.READY:
        return
    if not path.is_file():
        raise LookupError(f"{path.name} was removed from the journal after another MLflow store had received it")
    module, spec = build(path)
    if model is None:
        tags = {MODEL_TAG: digest, "mlflow.note.content": description(run, spec)}
        model = client.create_logged_model(run.info.experiment_id, name_of(run), source_run_id=run_id, tags=tags, params=run.data.params)
    with tempfile.TemporaryDirectory() as folder:
        saved_model.save(Path(folder), path, model, module, spec)
        client.log_model_artifacts(model.model_id, f"{folder}/model")
    if model.model_id not in {output.model_id for output in (run.outputs and run.outputs.model_outputs) or []}:
        client.log_outputs(run_id, models=[LoggedModelOutput(model.model_id, step)])
    client.log_batch(run_id, metrics=linked([point for point in points if split_of(point.key) in (TRAIN, VALID)], run, model))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def find_model(client: "MlflowClient", run: "Run", digest: str | None) -> "LoggedModel | None":
    """Return the run's logged model for the model file with the SHA-256 `digest`; None if there is none. Its upload may be incomplete."""
    found = client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'")
    return next((model for model in found if model.tags.get(MODEL_TAG) == digest), None)


def add_scores(client: "MlflowClient", run_id: str, points: "list[Metric]") -> None:
    """Add the test metrics among `points` to the run's logged model, if there is one. The model was logged before it was evaluated."""
    scores = [point for point in points if split_of(point.key) == TEST]
    if not scores:
        return
    run = client.get_run(run_id)
    if model := find_model(client, run, run.data.tags.get(MODEL_TAG)):
        client.log_batch(run_id, metrics=linked(scores, run, model))


def linked(points: "list[Metric]", run: "Run", model: "LoggedModel") -> "list[Metric]":
    """Return the points as metrics of the logged model, each linked to the run's dataset for the split in the metric's name.

    A metric of a split without a dataset gets no link. NaN and infinity are left out.
    """
    from mlflow.entities import Metric

    datasets = {each.dataset.name.rpartition(" ")[2]: each.dataset for each in (run.inputs.dataset_inputs if run.inputs else [])}
    metrics = []
    for point in points:
        if math.isfinite(point.value):  # MLflow would show NaN and infinity as 0
            dataset = datasets.get(split_of(point.key))
            name, digest = (dataset.name, dataset.digest) if dataset else (None, None)
            metrics.append(Metric(point.key, point.value, point.timestamp, point.step, model.model_id, name, digest, run.info.run_id))
    return metrics


def split_of(metric: str) -> str:
    """Return the split in the name of a metric, such as "valid" in `valid/loss`; "" if the metric has no split."""
    split = metric.partition("/")[0]
    return split if split in SPLITS else ""


def name_of(run: "Run") -> str:
    """Return a name for the run's logged model, ARCHITECTURE-DATASET. Characters that MLflow rejects in names are replaced by "-"."""
    params = run.data.params
    datasets = [each.dataset.name.rpartition(" ")[0] for each in (run.inputs.dataset_inputs if run.inputs else [])]
    names = [architecture(params), next(iter(datasets), params.get("source.name"))]
    return re.sub("[/:.%\"']", "-", "-".join(filter(None, names))) or "model"


def description(run: "Run", spec: "Spec") -> str:
    """Return a description of the run's logged model in Markdown."""
    from pipeline.tracking import saved_model

    names, outputs = spec.targets.output_names, f"logits of shape (n, {spec.num_outputs})"
    if spec.targets.per_token:
        outputs += " of the token that follows each text; `predict` does not apply, and `python -m pipeline generate` writes text"
    elif names:
        outputs += f" of the classes {textwrap.shorten(', '.join(names), LONGEST_LIST, placeholder=' ...')}"
    more = ' With `params` `{"return": "probabilities"}`: names and probabilities.' if names or spec.targets.per_token else ""
    return (
        f"**{name_of(run)}**, trained by run {run.info.run_name}.\n\nInput: {saved_model.expected(spec.inputs)}. Output: {outputs}.{more}"
    )
