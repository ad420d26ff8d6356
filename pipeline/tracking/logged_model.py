"""Logs the trained model to MLflow. The logged model maps raw images to logits, and MLflow loads it without pickle."""

import math
import re
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.raw_dataset import SPLITS, TEST
from pipeline.tracking.journal import MODEL
from pipeline.tracking.store import MODEL_TAG

if TYPE_CHECKING:
    import numpy as np
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric, Run
    from numpy.typing import NDArray
    from torch import nn

Build = Callable[[Path], "tuple[nn.Module, NDArray[np.uint8], Sequence[str]]"]
"""A function that loads a model file. It returns a module that maps uint8 images (n, height, width, channels) to logits, an example batch
of two images, and the class names. With one image, `torch.export` would fix the batch size at 1."""
LONGEST_LIST = 500


def log_model(client: "MlflowClient", run_id: str, path: Path, *, digest: str, step: int, points: "list[Metric]", build: Build) -> None:
    """Log the model file `path`, whose SHA-256 is `digest`, to the run `run_id`, unless the run already has the whole model.

    `step` is the training step of the weights, and `points` are the run's metrics at this step. If an earlier attempt was interrupted,
    complete the logged model that it began. Raises LookupError if the file is not in the journal, and the exceptions of `build` and MLflow.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    run = client.get_run(run_id)
    model = find_model(client, run, digest)
    if model and model.status == LoggedModelStatus.READY:
        return
    if not path.is_file():
        raise LookupError(f"{path.name} was removed from the journal after another MLflow store had received it")
    module, example, classes = build(path)
    if model is None:
        tags = {MODEL_TAG: digest, "mlflow.note.content": description(run, example, classes)}
        model = client.create_logged_model(run.info.experiment_id, name_of(run), source_run_id=run_id, tags=tags, params=run.data.params)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), path, model, module, example, classes)
        client.log_model_artifacts(model.model_id, f"{folder}/model")
    if model.model_id not in {output.model_id for output in (run.outputs and run.outputs.model_outputs) or []}:
        client.log_outputs(run_id, models=[LoggedModelOutput(model.model_id, step)])
    client.log_batch(run_id, metrics=linked([point for point in points if split_of(point.key)], run, model))
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
    """Return the points as metrics of the logged model, linked to the run's dataset for their split. Leave out NaN and infinity."""
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
    names = [params.get("model.architecture") or params.get("model.name"), params.get("source.name")]
    return re.sub("[/:.%\"']", "-", "-".join(filter(None, names))) or "model"


def description(run: "Run", example: "NDArray[np.uint8]", classes: Sequence[str]) -> str:
    """Return a description of the run's logged model in Markdown. `example` is an example batch of the model's input."""
    from pipeline.inputs.image import served_model

    return (
        f"**{name_of(run)}**, trained by run {run.info.run_name}.\n\n"
        f"Input: {served_model.expected(example.shape[1:])}. Output: logits of shape (n, {len(classes)}) of the classes "
        f"{textwrap.shorten(', '.join(classes), LONGEST_LIST, placeholder=' ...')}."
    )


def save(folder: Path, path: Path, model: "LoggedModel", module: "nn.Module", example: "NDArray[np.uint8]", classes: Sequence[str]) -> None:
    """Write an MLflow model to `folder/model`. It consists of the module as exported by `torch.export`, of `served_model.py`, which checks
    the input, and of the model file `path`, which commands of this pipeline such as `predict` read.

    `model` is the logged model in MLflow to which the files will be uploaded. `example` is an example batch.
    """
    import mlflow.pyfunc
    import mlflow.pytorch
    import torch
    from mlflow.models import Model, ModelSignature, infer_signature

    from pipeline.inputs.image import served_model

    requirements = [f"{name}=={metadata.version(name)}" for name in ("mlflow", "numpy", "torch")]
    with torch.inference_mode():
        signature = infer_signature(example, module.eval()(torch.from_numpy(example)).numpy())
    mlflow.pytorch.save_model(
        module,
        folder / served_model.EXPORTED,
        signature=signature,
        input_example=example,
        pip_requirements=requirements,
        serialization_format="pt2",
    )
    mlflow.pyfunc.save_model(
        folder / "model",
        python_model=served_model.__file__,
        artifacts={served_model.EXPORTED: str(folder / served_model.EXPORTED), MODEL: str(path)},
        mlflow_model=Model(model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id, model_id=model.model_id),
        signature=ModelSignature(outputs=signature.outputs),
        input_example=example,
        pip_requirements=requirements,
        metadata={"classes": list(classes)},
    )
