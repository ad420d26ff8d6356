"""Logs the trained model to MLflow in its format: the model file, and the code that predicts by it. MLflow loads it without pickle."""

import math
import re
import tempfile
import textwrap
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN, VALID
from pipeline.core.registry import READERS
from pipeline.core.spec import Inputs, Spec
from pipeline.runs.journal import MODEL, architecture
from pipeline.runs.mlflow.store import MODEL_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric, Run

    from pipeline.inference.model_file import Manifest

REQUIREMENTS = (
    *("mlflow", "numpy", "nvidia-ml-py", "pillow", "psutil", "pyarrow", "pydantic", "pydantic-settings", "ruamel.yaml", "safetensors"),
    *("tokenizers", "torch", "torchvision"),
)
"""The libraries that a prediction needs."""
HUB = ("timm", "transformers", "peft")
"""Those that a model of one of them needs, too."""


def reader(inputs: Inputs) -> Any:
    """Return what reads the inputs that are sent to a logged model; None for a kind that cannot be read from values, whose stored samples are sent."""
    return READERS.module(inputs.kind).Reader(inputs) if inputs.kind in READERS.names else None


def save(folder: Path, path: Path, model: "LoggedModel", manifest: "Manifest") -> None:
    """Write an MLflow model to `folder/model`: the model file `path`, the package `pipeline` in one file, and `served_model.py`, which predicts by both.

    `model` is the logged model in MLflow to which the files will be uploaded.
    """
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ParamSchema, ParamSpec

    from pipeline.runs.mlflow import served_model

    spec, stored = manifest.spec, manifest.spec.inputs.random_samples(2)
    found = reader(spec.inputs)
    example = found.example(stored) if found else stored  # as sent: texts, rows of a table, or else arrays
    params = served_model.GENERATION if spec.targets.stored == "windows" else served_model.PARAMS
    needed = (*REQUIREMENTS, *(HUB if manifest.inference.model.name in HUB else ()))
    mlflow.pyfunc.save_model(
        folder / "model",
        python_model=served_model.__file__,
        artifacts={MODEL: str(path), served_model.CODE: str(packed_code(folder / served_model.CODE))},
        mlflow_model=Model(model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id, model_id=model.model_id),
        signature=ModelSignature(
            params=ParamSchema([ParamSpec(name, "double" if isinstance(value, float) else "long", value) for name, value in params.items()])
        ),
        input_example=example,
        pip_requirements=[f"{name}=={metadata.version(name)}" for name in needed if name not in HUB or find_spec(name)],
        metadata={"classes": list(spec.targets.output_names)},
    )


def packed_code(path: Path) -> Path:
    """Write the modules of the package `pipeline` to one zip file, from which Python imports them: a store gets one file, not hundreds."""
    package = Path(__file__).parents[2]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(package.rglob("*.py")):
            archive.writestr(zipfile.ZipInfo(module.relative_to(package.parent).as_posix()), module.read_bytes(), zipfile.ZIP_DEFLATED)
        for folder in sorted({module.parent for module in package.rglob("*.py")}):  # some are packages by that alone
            archive.writestr(zipfile.ZipInfo(f"{folder.relative_to(package.parent).as_posix()}/"), b"")
    return path


LONGEST_LIST = 500


def log_model(client: "MlflowClient", run_id: str, path: Path, *, digest: str, step: int, points: "list[Metric]") -> None:
    """Log the model file `path`, whose SHA-256 is `digest`, to the run `run_id`, unless the run already has the whole model.

    `step` is the training step of the weights, and `points` are the run's metrics at this step. Those of the train and valid splits are
    logged with the model. `add_scores` logs those of the test split, whose dataset the run has only once the model is evaluated. If an
    earlier attempt was interrupted, complete the logged model that it began.

    Raises LookupError if `path` is missing, because a store has received it and it was then removed. Raises Refusal for a
    model file that cannot be loaded, and passes on the exceptions of MLflow.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    run = client.get_run(run_id)
    model = find_model(client, run, digest)
    if model and model.status == LoggedModelStatus.READY:
        return
    if not path.is_file():
        raise LookupError(f"{path.name} was removed from the journal after an MLflow store had received it")
    from pipeline.inference import model_file, tensor_file  # late: torch takes seconds to import

    manifest = model_file.describe(tensor_file.load(path)[1], path)
    if model is None:
        tags = {MODEL_TAG: digest, "mlflow.note.content": description(run, manifest.spec)}
        model = client.create_logged_model(run.info.experiment_id, name_of(run), source_run_id=run_id, tags=tags, params=run.data.params)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), path, model, manifest)
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
    inputs, targets = spec.inputs, spec.targets
    names = textwrap.shorten(", ".join(targets.output_names), LONGEST_LIST, placeholder=" ...")
    output = targets.predictions + (f", of {names}" if names else "")
    plain = f"{np.dtype(inputs.dtype).name} arrays of shape (n, {', '.join(map(str, inputs.row_shape))})"
    expected = found.expected() if (found := reader(inputs)) else plain
    return f"**{name_of(run)}**, trained by run {run.info.run_name}.\n\nInput: {expected}. Output: {output}."
