"""The trained model in MLflow: raw uint8 images in, logits out, loadable without pickle."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tracking.store import MODEL_TAG, Store

if TYPE_CHECKING:
    import numpy as np
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature
    from numpy.typing import NDArray
    from torch import nn

Build = Callable[[Path], "tuple[nn.Module, NDArray[np.uint8]]"]
"""From a model file to a module (uint8 NHWC to logits) and an example batch of two: one of one makes a model that takes only one."""
NAME = "model"


def log_model(store: Store, run_id: str, path: Path, *, digest: str, step: int, build: Build) -> None:
    """Log the model once: a run that has it whole is left alone, and what an interrupted attempt began is completed."""
    begun = begun_model(store, run_id, digest)
    if begun and begun.status.name == "READY":
        return
    if not path.is_file():
        raise LookupError(f"{path.name} was delivered to another store and is no longer in the journal")
    import mlflow
    import mlflow.pytorch

    module, example = build(path)
    mlflow.set_tracking_uri(store.address.for_mlflow)
    mlflow.set_experiment(experiment_id=store.client.get_run(run_id).info.experiment_id)
    mlflow.pytorch.log_model(
        module,
        name=NAME,
        # MLflow ties a new model to the run it is given before it uploads, and fails on doing so again
        run_id=None if begun and is_tied(store, run_id, begun.model_id) else run_id,
        model_id=begun.model_id if begun else None,
        step=step,
        tags={MODEL_TAG: digest},
        signature=signature_of(module, example),
        input_example=example,
        pip_requirements=[f"{name}=={metadata.version(name)}" for name in ("mlflow", "numpy", "torch")],
        serialization_format="pt2",
        validate_serving_input=False,  # it would load the model once more only to warn
    )


def begun_model(store: Store, run_id: str, digest: str) -> "LoggedModel | None":
    """The run's model with this digest, whole or not."""
    experiment_id = store.client.get_run(run_id).info.experiment_id
    found = store.client.search_logged_models([experiment_id], filter_string=f"source_run_id = '{run_id}'")
    return next((model for model in found if model.tags.get(MODEL_TAG) == digest), None)


def is_tied(store: Store, run_id: str, model_id: str) -> bool:
    outputs = store.client.get_run(run_id).outputs
    return any(output.model_id == model_id for output in (outputs and outputs.model_outputs) or [])


def signature_of(module: "nn.Module", example: "NDArray[np.uint8]") -> "ModelSignature":
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.inference_mode():
        logits = module.eval()(torch.from_numpy(example)).numpy()
    return ModelSignature(
        inputs=Schema([TensorSpec(example.dtype, (-1, *example.shape[1:]), name=None)]),
        outputs=Schema([TensorSpec(logits.dtype, (-1, *logits.shape[1:]), name=None)]),
    )
