"""Logs the trained model to MLflow in its format: the exported program, the code that serves it, the tokenizer, and the model file.

It maps raw images or texts to logits or probabilities, and MLflow loads it without pickle.
"""

import math
import re
import tempfile
import textwrap
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core import files
from pipeline.core.inputs.image import ImageInputs
from pipeline.core.inputs.table import TableInputs
from pipeline.core.inputs.text import TextInputs
from pipeline.core.inputs.text_pair import TextPairInputs
from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN, VALID
from pipeline.core.spec import Inputs, Spec
from pipeline.core.tasks.multi_label import LabelTargets
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.untrusted import shown
from pipeline.runs.journal import MODEL, architecture
from pipeline.runs.mlflow.store import MODEL_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric, Run
    from mlflow.types import Schema
    from numpy.typing import NDArray
    from torch import nn

TOKENIZER_CODE = (
    "core/untrusted.py",
    "core/refusal.py",
    "core/registry.py",
    "core/spec.py",
    "core/pretrained_tokenizer.py",
    "core/inputs/table.py",
    "core/inputs/text.py",
    "core/inputs/text_pair.py",
    "core/normalization.py",
    "core/tokenizer.py",
)
"""The modules that turn texts and rows of tables into stored inputs."""
TOKENIZER_NEEDS = ("pydantic", "tokenizers")
PARAM_TYPES = {"return": "string", "top_k": "long"}


def expected(inputs: Inputs) -> str:
    """Describe the input of a logged model, for people."""
    if isinstance(inputs, TextInputs | TextPairInputs):
        return f"a list of texts, of which the model reads at most {inputs.length} tokens each"
    if isinstance(inputs, TableInputs):
        return f"rows of a table (a DataFrame, or dicts) with the columns {shown(', '.join(str(column.name) for column in inputs.columns))}"
    shape = f"of shape (n, {', '.join(map(str, inputs.row_shape))})"
    if isinstance(inputs, ImageInputs):
        scale = f" (255 is white, which was {inputs.white} in the files of the training)" if inputs.white else ""
        return f"raw images, integers from 0 to 255{scale} {shape}: the model normalises them itself"
    return f"{np.dtype(inputs.dtype).name} arrays {shape}"


def save(folder: Path, path: Path, model: "LoggedModel", module: "nn.Module", spec: Spec) -> None:
    """Write an MLflow model to `folder/model`. It contains the module, exported by `torch.export`; the code of `served_model.py`, which
    checks the input and, for texts, applies the tokenizer; and the model file `path`, which `predict` reads.

    `model` is the logged model in MLflow to which the files will be uploaded. `module` maps stored inputs to outputs, as `spec` describes
    them.
    """
    import mlflow.pyfunc
    import torch
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ParamSchema, ParamSpec

    from pipeline.runs.mlflow import served_model

    # A batch of two: with one sample, `torch.export` would fix the batch size at 1.
    example = spec.inputs.random_samples(2)
    with torch.inference_mode():
        outputs = module.eval()(torch.from_numpy(example)).numpy()
    has_tokenizer = isinstance(spec.inputs, TextInputs | TextPairInputs | TableInputs)
    requirements = [
        f"{name}=={metadata.version(name)}" for name in ("mlflow", "numpy", "torch", *(TOKENIZER_NEEDS if has_tokenizer else ()))
    ]
    save_exported(folder / served_model.EXPORTED, module, spec, example, outputs, requirements)
    about = described(spec)
    files.write_json(folder / served_model.DESCRIPTION, about)
    mlflow.pyfunc.save_model(
        folder / "model",
        python_model=served_model.__file__,
        code_paths=[str(copy_tokenizer(folder))] if has_tokenizer else None,
        artifacts={
            served_model.EXPORTED: str(folder / served_model.EXPORTED),
            served_model.DESCRIPTION: str(folder / served_model.DESCRIPTION),
            MODEL: str(path),
        },
        mlflow_model=Model(model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id, model_id=model.model_id),
        signature=ModelSignature(
            outputs=None if about["names"] or about["pairs"] else array_schema(outputs),  # records have no schema
            params=ParamSchema([ParamSpec(name, type_of, served_model.PARAMS[name]) for name, type_of in PARAM_TYPES.items()]),
        ),
        input_example=given_example(spec.inputs, example),
        pip_requirements=requirements,
        metadata={"classes": list(spec.targets.output_names)},
    )


def save_exported(
    folder: Path, module: "nn.Module", spec: Spec, example: "NDArray[Any]", outputs: "NDArray[Any]", requirements: list[str]
) -> None:
    """Write `module` to `folder`, exported by `torch.export`. It maps `example`, two stored inputs, to `outputs`.

    The number of samples is variable; so is the length of texts, and of what is returned for their tokens.
    """
    import mlflow.pytorch
    from mlflow.models import ModelSignature

    is_text = isinstance(spec.inputs, TextInputs | TextPairInputs)
    mlflow.pytorch.save_model(
        module,
        folder,
        signature=ModelSignature(
            array_schema(example, num_variable=2 if is_text else 1),
            array_schema(outputs, num_variable=2 if spec.targets.per_token or spec.targets.paired else 1),
        ),
        input_example=example,
        pip_requirements=requirements,
        serialization_format="pt2",
    )


def array_schema(array: "NDArray[Any]", *, num_variable: int = 1) -> "Schema":
    """Return the schema of arrays like `array`, whose first `num_variable` dimensions may have any size."""
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(array.dtype, (-1,) * num_variable + array.shape[num_variable:])])


def described(spec: Spec) -> dict[str, Any]:
    """Return what `served_model.py` needs to know about inputs and outputs."""
    inputs, tokenizer, table = spec.inputs, None, None
    names = list(spec.targets.output_names) if spec.targets.has_classes or spec.targets.has_labels else []
    if isinstance(inputs, TableInputs):
        table = {"package": tokenizer_package(), "description": inputs.model_dump(mode="json")}
    if isinstance(inputs, TextInputs | TextPairInputs):
        described = inputs.tokenizer
        tokenizer = {"package": tokenizer_package(), "description": described.model_dump(mode="json")}
        if spec.targets.per_token:
            decode = Tokenizer(described).decode
            special = {described.pad: "<padding>", described.unknown: "<unknown>", described.end: "<end>"}
            names = [special.get(number) or decode([number]) for number in range(inputs.num_tokens)]
    return {
        "expected": expected(inputs),
        "shape": inputs.row_shape,
        "dtype": np.dtype(inputs.dtype).name,
        "tokenizer": tokenizer,
        "table": table,
        "per_token": spec.targets.per_token,
        "pairs": inputs.model_dump(mode="json") if isinstance(inputs, TextPairInputs) else None,
        "names": names,
        **({"thresholds": spec.targets.thresholds} if isinstance(spec.targets, LabelTargets) else {}),
    }


def given_example(inputs: Inputs, stored: "NDArray[Any]") -> Any:
    """Return two inputs as they are sent to a logged model: texts, rows of a table, or else `stored`, two stored inputs."""
    if isinstance(inputs, TextInputs | TextPairInputs):
        tokenizer = Tokenizer(inputs.tokenizer)
        return [tokenizer.decode(islice((number for number in range(inputs.num_tokens) if number not in tokenizer.special), 8))] * 2
    if isinstance(inputs, TableInputs):
        return [
            {str(column.name): column.cell(number) for column, number in zip(inputs.columns, row, strict=True)} for row in stored.tolist()
        ]
    return stored


def copy_tokenizer(folder: Path) -> Path:
    """Copy the code of the tokenizer to a package in `folder`, and return the package.

    The package has another name than `pipeline`: MLflow puts it before all other modules, and it must not hide those of a checkout.
    """
    package = folder / tokenizer_package()
    for name, code in tokenizer_code().items():
        files.write_text(package / name, code.replace("from pipeline", f"from {package.name}"))
    return package


@cache
def tokenizer_package() -> str:
    """Return the name of the package with the tokenizer's code. It has a digest of the code, so that models of several versions can be loaded."""
    return f"tokenizer_{files.digest_of(tokenizer_code())[:12]}"


def tokenizer_code() -> dict[str, str]:
    """Return the code of the tokenizer's modules, by the path inside `pipeline/`."""
    top = Path(__file__).parents[2]
    return {name: (top / name).read_text(encoding="utf-8") for name in TOKENIZER_CODE}


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
    from pipeline.inference import model_file  # late: torch takes seconds to import

    module, manifest = model_file.load(path, complete=True)
    spec = manifest.spec
    if model is None:
        tags = {MODEL_TAG: digest, "mlflow.note.content": description(run, spec)}
        model = client.create_logged_model(run.info.experiment_id, name_of(run), source_run_id=run_id, tags=tags, params=run.data.params)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), path, model, module, spec)
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
    targets, names = spec.targets, textwrap.shorten(", ".join(spec.targets.output_names), LONGEST_LIST, placeholder=" ...")
    if targets.paired:
        output = "the text that it writes for each, with its confidence"
    elif targets.per_token:
        output = "the most probable next tokens; `predict` does not apply, and `python -m pipeline generate` writes text"
    elif targets.has_classes or targets.has_labels:
        output = f"the most probable {'classes' if targets.has_classes else 'labels'} with their probabilities, of {names}"
    else:
        output = f"numbers of shape (n, {spec.num_outputs})" + (f": {names}" if names else "")
    return f"**{name_of(run)}**, trained by run {run.info.run_name}.\n\nInput: {expected(spec.inputs)}. Output: {output}."
