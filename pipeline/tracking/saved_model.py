"""Writes a model in MLflow's format: the exported program, the code that serves it, the tokenizer, and the model file."""

from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.text.description import END, NUM_SPECIAL, TextInputs
from pipeline.inputs.text.tokenizer import Tokenizer
from pipeline.io import files
from pipeline.spec import Inputs, Spec
from pipeline.tracking.journal import MODEL

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from numpy.typing import NDArray
    from torch import nn

TOKENIZER_CODE = (
    "refusal.py",
    "registry.py",
    "spec.py",
    *(f"inputs/text/{name}.py" for name in ("description", "normalization", "pieces", "tokenizer")),
)
"""The modules that the tokenizer imports, and itself."""
TOKENIZER_NEEDS = ("pydantic", "tokenizers")
PARAM_TYPES = {"return": "string", "top_k": "long"}


def expected(inputs: Inputs) -> str:
    """Describe the input of a logged model, for people."""
    if isinstance(inputs, TextInputs):
        return f"a list of texts, of which the model reads at most {inputs.length} tokens each"
    shape = f"of shape (n, {', '.join(map(str, inputs.row_shape))})"
    if isinstance(inputs, ImageInputs):
        return f"raw images, integers from 0 to 255 {shape}: the model normalises them itself"
    return f"{np.dtype(inputs.dtype).name} arrays {shape}"


def save(folder: Path, path: Path, model: "LoggedModel", module: "nn.Module", spec: Spec) -> None:
    """Write an MLflow model to `folder/model`. It contains the module, exported by `torch.export`; the code of `served_model.py`, which
    checks the input and, for texts, applies the tokenizer; and the model file `path`, which `predict` reads.

    `model` is the logged model in MLflow to which the files will be uploaded. `module` maps stored inputs to outputs, as `spec` describes
    them.
    """
    import mlflow.pyfunc
    import mlflow.pytorch
    import torch
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    from pipeline.tracking import served_model

    # A batch of two: with one sample, `torch.export` would fix the batch size at 1.
    example = spec.inputs.random_samples(2)
    with torch.inference_mode():
        outputs = module.eval()(torch.from_numpy(example)).numpy()
    is_text, per_token = isinstance(spec.inputs, TextInputs), spec.targets.per_token

    def schema(array: "NDArray[Any]", *, num_variable: int) -> Schema:
        return Schema([TensorSpec(array.dtype, (-1,) * num_variable + array.shape[num_variable:])])

    requirements = [f"{name}=={metadata.version(name)}" for name in ("mlflow", "numpy", "torch", *(TOKENIZER_NEEDS if is_text else ()))]
    mlflow.pytorch.save_model(
        module,
        folder / served_model.EXPORTED,
        signature=ModelSignature(
            schema(example, num_variable=2 if is_text else 1),  # of texts, the length is variable, too
            schema(outputs, num_variable=2 if per_token else 1),
        ),
        input_example=example,
        pip_requirements=requirements,
        serialization_format="pt2",
    )
    files.write_json(folder / served_model.DESCRIPTION, described(spec))
    mlflow.pyfunc.save_model(
        folder / "model",
        python_model=served_model.__file__,
        code_paths=[str(copy_tokenizer(folder))] if is_text else None,
        artifacts={
            served_model.EXPORTED: str(folder / served_model.EXPORTED),
            served_model.DESCRIPTION: str(folder / served_model.DESCRIPTION),
            MODEL: str(path),
        },
        mlflow_model=Model(model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id, model_id=model.model_id),
        signature=ModelSignature(
            outputs=schema(outputs[:, -1] if per_token else outputs, num_variable=1),
            params=ParamSchema([ParamSpec(name, type_of, served_model.PARAMS[name]) for name, type_of in PARAM_TYPES.items()]),
        ),
        input_example=[example_text(spec.inputs)] * 2 if isinstance(spec.inputs, TextInputs) else example,
        pip_requirements=requirements,
        metadata={"classes": list(spec.targets.output_names)},
    )


def described(spec: Spec) -> dict[str, Any]:
    """Return what `served_model.py` needs to know about inputs and outputs."""
    inputs, names, tokenizer = spec.inputs, list(spec.targets.output_names), None
    if isinstance(inputs, TextInputs):
        tokenizer = {
            "module": f"{tokenizer_package()}.inputs.text.tokenizer",
            "description": inputs.tokenizer.model_dump(mode="json"),
            "end": END,
        }
        if spec.targets.per_token:
            decode = Tokenizer(inputs.tokenizer).decode
            names = ["<padding>", "<unknown>", "<end>", *(decode([number]) for number in range(NUM_SPECIAL, inputs.num_tokens))]
    return {
        "expected": expected(inputs),
        "shape": inputs.row_shape,
        "dtype": np.dtype(inputs.dtype).name,
        "tokenizer": tokenizer,
        "per_token": spec.targets.per_token,
        "names": names,
    }


def example_text(inputs: TextInputs) -> str:
    return Tokenizer(inputs.tokenizer).decode(range(NUM_SPECIAL, min(inputs.num_tokens, NUM_SPECIAL + 8)))


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
    top = Path(__file__).parents[1]
    return {name: (top / name).read_text(encoding="utf-8") for name in TOKENIZER_CODE}
