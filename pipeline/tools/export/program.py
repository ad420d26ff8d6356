"""The program of a model for `torch.export`, and the comparison of an exported program's outputs with those of the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import Dim, ExportedProgram

from pipeline.core import files
from pipeline.core.spec import Inputs
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.prepare.progress import progress

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


TOLERANCE = 1e-4
"""Largest allowed difference of an output."""
BATCH_SIZE = 32

Program = Callable[[NDArray[np.generic]], NDArray[np.float32]]


@dataclass
class Difference:
    """Describes how far the outputs of an exported program are from those of the model.

    `largest` is the largest absolute difference of an output. `num_other_classes` counts the outputs whose most probable class differs.
    """

    largest: float = 0.0
    num_outputs: int = 0
    num_other_classes: int = 0

    @property
    def within_tolerance(self) -> bool:
        """Return True if no output differs by more than TOLERANCE. Return False if any difference is NaN."""
        return self.largest <= TOLERANCE

    def __str__(self) -> str:
        same = self.num_outputs - self.num_other_classes
        return f"largest difference {self.largest:.2g} (allowed: {TOLERANCE:.0e}), the same class for {same} of {self.num_outputs} outputs"

    def add(self, expected: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """Compare two batches of outputs (..., classes), and include them in this difference.

        `expected` has the outputs of the model, and `found` those of the program. Raises ValueError if their shapes differ.
        """
        if expected.shape != found.shape:
            raise ValueError(f"outputs have shape {found.shape} instead of {expected.shape}")
        self.largest = float(np.maximum(self.largest, np.abs(expected - found).max()))  # `maximum` keeps NaN
        classes, others = expected.argmax(-1), found.argmax(-1)
        self.num_outputs += classes.size
        self.num_other_classes += int((classes != others).sum())


def compare(model: Model, program: Program, rows: NDArray[np.generic], *, variable_length: bool) -> Difference:
    """Run the model and the exported program on all `rows`, and return how much their outputs differ.

    `rows` has samples in the form in which `prepare` stores them. If `variable_length` is True, shortened samples are compared too. Raises
    ValueError if the shapes of the outputs differ. Exceptions of the program are passed on.
    """
    difference = Difference()
    with progress("export", len(rows), "samples") as advance:
        for batch in advance.each(batches(rows, variable_length=variable_length), len):
            with torch.inference_mode():
                expected = model(torch.from_numpy(batch)).numpy()
            difference.add(expected, program(batch))
    return difference


def batches(rows: NDArray[np.generic], *, variable_length: bool) -> Iterator[NDArray[np.generic]]:
    """Yield all `rows` in batches of different sizes, because an exported program must work for any batch size.

    If `variable_length` is True, first yield the first two rows, cut to half their length, because the program must then work for any
    length.
    """
    if variable_length:
        yield np.ascontiguousarray(rows[:2, : (rows.shape[1] + 1) // 2])  # compiled programs assume contiguous inputs
    yield rows[:1]
    for first in range(1, len(rows), BATCH_SIZE):
        yield rows[first : first + BATCH_SIZE]
