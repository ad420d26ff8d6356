"""Captures a model as a program of tensor operations, which each format stores, and describes the program."""

from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from pipeline.engine.model import Model
from pipeline.engine.model_file import Manifest
from pipeline.io import files
from pipeline.spec import Inputs

KEY = "pipeline"
"""Name of the metadata in an exported file."""
FORMAT = "pipeline-export-1"
INPUT, OUTPUT = "inputs", "outputs"


def in_float32(model: Model) -> Model:
    """Convert the model in place, so that it computes in float32. The values of its weights do not change.

    ONNX Runtime cannot compute convolutions in bf16 on a CPU, and compilers round bf16 at other places than PyTorch does.
    """
    model.bf16_weights = False
    return model.float()


def capture(model: Model, inputs: Inputs) -> ExportedProgram:
    """Return `model`, which must be in evaluation mode, as a program of tensor operations. `inputs` describes the model's inputs.

    The program includes the preprocessing. Its input is a batch of samples in the form in which `prepare` stores them. The batch size is
    variable and, for texts, the length too. Exceptions of `torch.export` are passed on: it cannot capture every model.
    """
    example = torch.from_numpy(inputs.random_samples(2))  # of two samples: a size of one would become a constant
    # AUTO allows an upper bound, such as the number of positions of a transformer; DYNAMIC raises an exception for any bound
    sizes = {0: Dim.DYNAMIC, 1: Dim.AUTO} if has_variable_length(inputs) else {0: Dim.DYNAMIC}
    return torch.export.export(model, (example,), dynamic_shapes=(sizes,))


def variable_axes(inputs: Inputs) -> tuple[str, ...]:
    """Return the names of those axes of a program's input whose size is variable. They are always the first axes.

    The batch axis is always variable. The second axis, the length, is variable if the samples are padded, as texts are.
    """
    return ("batch", "length") if has_variable_length(inputs) else ("batch",)


def shape(inputs: Inputs) -> list[str | int]:
    """Return the shape of a program's input: first the name of each variable axis, then the size of each other axis."""
    axes = variable_axes(inputs)
    return [*axes, *inputs.row_shape[len(axes) - 1 :]]


def has_variable_length(inputs: Inputs) -> bool:
    return inputs.lengths(inputs.random_samples(1)) is not None


def metadata(manifest: Manifest, path: Path) -> str:
    """Return the metadata of an exported file as canonical JSON: what a reader needs to prepare inputs and to interpret outputs.

    `path` is the model file; its SHA-256 is recorded.
    """
    spec = manifest.spec
    contents: dict[str, Any] = {
        "format": FORMAT,
        "model_sha256": files.digest(path),
        "classes": spec.targets.output_names,
        "input": {"name": INPUT, "dtype": spec.inputs.dtype.__name__, "shape": shape(spec.inputs)},
        "output": {"name": OUTPUT, "dtype": "float32"},
        "spec": spec.model_dump(mode="json"),
        "params": manifest.inference.model_dump(mode="json"),
        "precision": manifest.precision,
        "step": manifest.step,
    }
    return files.canonical(contents)
