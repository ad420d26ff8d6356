"""Logs the trained model to MLflow. The logged model maps raw uint8 images to logits, loads without pickle and has the metrics of its run."""

import math
import re
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tracking.journal import MODEL
from pipeline.tracking.store import MODEL_TAG, Store

if TYPE_CHECKING:
    import numpy as np
    from mlflow.entities import LoggedModel, Metric, Run
    from mlflow.models import ModelSignature
    from numpy.typing import NDArray
    from torch import nn

Build = Callable[[Path], "tuple[nn.Module, NDArray[np.uint8], Sequence[str]]"]
"""A function that loads a model file and returns a module (which maps uint8 NHWC images to logits), an example batch and the class names.

The example batch has two images: with a batch of one, `torch.export` would fix the batch size at 1.
"""
SERVED = Path(__file__).with_name("served_model.py")
LONGEST_LIST = 500
SPLITS = ("train", "valid", "test")


def log_model(store: Store, run_id: str, path: Path, *, digest: str, step: int, points: "list[Metric]", build: Build) -> None:
    """Log the model file `path` with SHA-256 `digest` to the run `run_id`, at the training step `step`. `points` are the metrics at this step.

    If the run already has the complete model, do nothing. If an earlier attempt was interrupted, complete the logged model that it began.
    Raises LookupError if the journal no longer has the model file.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    client, run = store.client, store.client.get_run(run_id)
    model = find_model(store, run, digest)
    if model and model.status == LoggedModelStatus.READY:
        return
    if not path.is_file():
        raise LookupError(f"{path.name} is no longer in the journal, because another store has received it")
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


def find_model(store: Store, run: "Run", digest: str | None) -> "LoggedModel | None":
    """Return the run's logged model with this SHA-256; None if there is none. The upload of the model may be incomplete."""
    found = store.client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'")
    return next((model for model in found if model.tags.get(MODEL_TAG) == digest), None)


def add_scores(store: Store, run_id: str, points: "list[Metric]") -> None:
    """Add the test metrics among `points` to the run's logged model, if it has one: the training logs the model before the evaluation."""
    scores = [point for point in points if split_of(point.key) == "test"]
    if not scores:
        return
    run = store.client.get_run(run_id)
    if model := find_model(store, run, run.data.tags.get(MODEL_TAG)):
        store.client.log_batch(run_id, metrics=linked(scores, run, model))


def linked(points: "list[Metric]", run: "Run", model: "LoggedModel") -> "list[Metric]":
    """Return the finite points as metrics of the logged model, each linked to the run's dataset for the metric's split, if any."""
    from mlflow.entities import Metric

    datasets = {each.dataset.name.rpartition(" ")[2]: each.dataset for each in (run.inputs.dataset_inputs if run.inputs else [])}

    def link(point: "Metric") -> "Metric":
        dataset = datasets.get(split_of(point.key))
        name, digest = (dataset.name, dataset.digest) if dataset else (None, None)
        return Metric(point.key, point.value, point.timestamp, point.step, model.model_id, name, digest, run.info.run_id)

    # MLflow would show NaN and infinity as 0.
    return [link(point) for point in points if math.isfinite(point.value)]


def split_of(metric: str) -> str:
    """Return the split of a metric, or "" for a metric without a split, such as a system metric."""
    split = metric.partition("/")[0]
    return split if split in SPLITS else ""


def name_of(run: "Run") -> str:
    """Return architecture and dataset joined by "-"; "model" if both are unknown. Replace characters that MLflow rejects in names by "-"."""
    params = run.data.params
    names = [params.get("model.architecture") or params.get("model.name"), params.get("source.name")]
    return re.sub("[/:.%\"']", "-", "-".join(filter(None, names))) or "model"


def description(run: "Run", example: "NDArray[np.uint8]", classes: Sequence[str]) -> str:
    """Return the description of the logged model in Markdown."""
    shape = ", ".join(map(str, example.shape[1:]))
    return (
        f"**{name_of(run)}**, trained by run {run.info.run_name}.\n\n"
        f"Input: raw images, integers from 0 to 255, shape (n, {shape}). Output: logits (n, {len(classes)}) of the classes "
        f"{textwrap.shorten(', '.join(classes), LONGEST_LIST, placeholder=' ...')}."
    )


def save(folder: Path, path: Path, model: "LoggedModel", module: "nn.Module", example: "NDArray[np.uint8]", classes: Sequence[str]) -> None:
    """Write the MLflow model to `folder/model`: the exported program, `served_model.py`, which checks the input, and the model file `path`.

    `predict` reads the model file: it needs no code from the store.
    """
    import mlflow.pyfunc
    import mlflow.pytorch
    from mlflow.models import Model, ModelSignature

    from pipeline.tracking.served_model import EXPORTED

    requirements = [f"{name}=={metadata.version(name)}" for name in ("mlflow", "numpy", "torch")]
    signature = signature_of(module, example)
    mlflow.pytorch.save_model(
        module, folder / EXPORTED, signature=signature, input_example=example, pip_requirements=requirements, serialization_format="pt2"
    )
    mlflow.pyfunc.save_model(
        folder / "model",
        python_model=SERVED,
        artifacts={EXPORTED: str(folder / EXPORTED), MODEL: str(path)},
        mlflow_model=Model(model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id, model_id=model.model_id),
        signature=ModelSignature(outputs=signature.outputs),
        input_example=example,
        pip_requirements=requirements,
        metadata={"classes": list(classes)},
    )


def signature_of(module: "nn.Module", example: "NDArray[np.uint8]") -> "ModelSignature":
    """Return the MLflow signature of the module: dtypes and shapes of input and output, with a variable batch size."""
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.inference_mode():
        logits = module.eval()(torch.from_numpy(example)).numpy()
    return ModelSignature(
        inputs=Schema([TensorSpec(example.dtype, (-1, *example.shape[1:]), name=None)]),
        outputs=Schema([TensorSpec(logits.dtype, (-1, *logits.shape[1:]), name=None)]),
    )
