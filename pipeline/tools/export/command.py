"""`python -m pipeline export`: write a model as a program for other runtimes, once its outputs were found equal to those of the model."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import Dim, ExportedProgram

from pipeline.core import files, untrusted
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import TEST
from pipeline.core.refusal import Refusal, counted
from pipeline.core.spec import Inputs, Spec
from pipeline.inference import model_file
from pipeline.inference.machine import Machine
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from pipeline.prepare.progress import progress
from pipeline.runs import find
from pipeline.tools.compare.paired import Member, averaged
from pipeline.tools.export.formats import FORMATS, INPUT, OUTPUT, Format, Program

FORMAT = "pipeline-export-1"
TOLERANCE = 1e-4
"""Largest allowed difference of an output."""
BATCH_SIZE = 32
NUM_RANDOM = 64
"""Number of random samples for the comparison if the test split is not available."""


class Unequal(Exception):
    """Raised if an exported program cannot be run, or if its outputs are not those of the model."""


@dataclass
class OutputDifference:
    """Describes how far the outputs of an exported program are from those of the model.

    `largest` is the largest absolute difference of an output, in units of `scale`: the standard deviations of numbers, or 1 for logits and probabilities.
    `num_other_classes` counts the outputs whose most probable class differs; None if the outputs are no classes, and have a `unit`.
    """

    scale: NDArray[np.float64] | float = 1.0
    num_other_classes: int | None = 0
    largest: float = 0.0
    num_outputs: int = 0
    unit: str = ""

    @property
    def within_tolerance(self) -> bool:
        """Return True if no output differs by more than TOLERANCE. Return False if any difference is NaN."""
        return self.largest <= TOLERANCE

    def __str__(self) -> str:
        largest = f"largest difference {self.largest:.2g} (allowed: {TOLERANCE:.0e})"
        if self.num_other_classes is None:
            return f"{largest}, in {self.unit}"
        return f"{largest}, the same class for {self.num_outputs - self.num_other_classes} of {self.num_outputs} outputs"

    def add(self, expected: NDArray[np.floating], found: NDArray[np.floating]) -> None:
        """Compare two batches of outputs (..., classes), and include them in this difference.

        `expected` has the outputs of the model, and `found` those of the program. Raises ValueError if their shapes differ.
        """
        if expected.shape != found.shape:
            raise ValueError(f"outputs have shape {found.shape} instead of {expected.shape}")
        self.largest = float(np.maximum(self.largest, (np.abs(expected - found) / self.scale).max()))  # `maximum` keeps NaN
        if self.num_other_classes is not None:
            classes, others = expected.argmax(-1), found.argmax(-1)
            self.num_outputs += classes.size
            self.num_other_classes += int((classes != others).sum())


def run(subject: str, format: str, output: str | None, others: Sequence[str]) -> int:  # noqa: A002  # the names of the command line
    """Write a model to a file in another format. Print the path of this file, and the largest difference between its outputs and those of
    the model.

    `subject` names the model: see `runs/find.py`. `format` is "onnx", "pt2" or "aoti". `output` is the
    path to write. If it is None, the file is written beside the model file or, for a run or a model in MLflow, in `models/`. With `others`, the
    names of further models, it gives the mean of the probabilities of all, and its default name is `ensemble`. Returns 0; but
    returns 1 and writes no file if an output differs by more than the tolerance (TOLERANCE), or if the file cannot be run.
    """
    paths, environment = Paths(), Environment.read()
    try:
        with ExitStack() as stack:
            found = [stack.enter_context(find.located(name, paths, environment)) for name in (subject, *others)]
            # a model of MLflow is in a temporary folder, and that of a run in its journal
            beside = found[0].path if found[0].is_file else paths.model
            target = Path(output) if output else beside.with_name(("ensemble" if others else beside.stem) + FORMATS[format].suffix)
            export([each.path for each in found], format, target, paths, environment)
    except Unequal as unequal:
        print(f"error: {unequal}", file=sys.stderr)
        return 1
    return 0


def export(models: Sequence[Path], name: str, target: Path, paths: Paths, environment: Environment) -> None:
    """Write the model of the file `models[0]`, or several models as one, in the format `name` to `target`, and print what was written and how its outputs were compared.

    `target` is written only if the outputs are equal within the tolerance. Raises Unequal if they are not, or if the program cannot be run.
    Raises Refusal if the model file, the output path or the prepared data cannot be used, if a package or compiler that the format needs is
    missing, or if the format does not support the model.
    """
    chosen = FORMATS[name]
    chosen.refuse_unavailable()
    members = [Member(str(path), *model_file.load(path, complete=True)) for path in models]
    if members[0].manifest.spec.targets.stored == "within":
        raise Refusal(
            f"--format {name}: this model writes texts token by token, and an exported program has no loop for it: use `load_model` or a model of MLflow"
        )
    for path, (_, member, _) in zip(models, members, strict=True):
        # ONNX Runtime cannot compute convolutions in bf16 on a CPU, and compilers round bf16 at other places than PyTorch does.
        member.float().bf16_weights = False
        refuse_output(target, model=path)
    model, manifest = averaged(members), members[0].manifest
    machine = Machine.set_up(environment.model_copy(update={"device": "cpu"}))
    inputs = manifest.spec.inputs
    rows, origin = samples(manifest.spec, paths)
    with files.replacing(target) as draft:
        dtype = dtype_of_outputs(model, inputs)
        write(draft, chosen, model, manifest.spec, metadata(manifest, models, dtype), name=f"--format {name}")
        size = draft.stat().st_size
        difference = run_exported(chosen, draft, model, rows, threads=machine.threads, variable_length=has_variable_length(inputs))
        if not difference.within_tolerance:
            raise Unequal(f"{target}: was not written, because its outputs on {origin} are not those of the model: {difference}")
    sizes = ", ".join(map(str, shape(inputs)))
    print(f"export: {target} ({size / 1e6:.2f} MB) takes ({sizes}) {inputs.dtype.__name__}, returns {dtype}")
    shortened = ", and on two of them cut to half their length" if has_variable_length(inputs) else ""
    print(f"export: compared on {origin}{shortened}: {difference}")


def refuse_output(target: Path, *, model: Path) -> None:
    """Raise Refusal if `target` is a folder, is in a folder that does not exist, or is the model file itself."""
    if target.is_dir():
        raise Refusal(f"--output {target}: is a folder: write the name of a file")
    if not target.parent.is_dir():
        raise Refusal(f"--output {target}: there is no folder {target.parent}: create it, or write another path")
    if target.exists() and model.exists() and target.samefile(model):
        raise Refusal(f"--output {target}: is the model file itself: write another path")


def samples(spec: Spec, paths: Paths) -> tuple[NDArray[Any], str]:
    """Return samples for the comparison, and a description of them for the user. `spec` describes the dataset of the model.

    The samples are those of the test split. They are random if there is no prepared data, or if the prepared data has no test split, or
    has other targets, or inputs that the model cannot read. Raises Refusal if the prepared data is damaged.
    """
    random = spec.inputs.random_samples(NUM_RANDOM)
    if not (paths.prepared / "spec.json").exists():
        return random, f"{NUM_RANDOM} random samples, because there is no {paths.prepared}"
    prepared = Prepared.open(paths.prepared)
    is_other = not spec.inputs.reads_samples_of(prepared.spec.inputs) or not spec.targets.has_targets_of(prepared.spec.targets)
    if is_other or TEST not in prepared.splits:
        return random, f"{NUM_RANDOM} random samples, because {paths.prepared} has no test split of the model's dataset"
    inputs = prepared.split(TEST).inputs
    return inputs, f"the {counted(len(inputs), 'sample')} of the test split"


def write(draft: Path, chosen: Format, model: Model, spec: Spec, metadata: str, *, name: str) -> None:
    """Capture the model as a program, and write the program and `metadata` in the format `chosen` to the temporary file `draft`.

    `name` is the option for the message of a Refusal, such as `--format onnx`. Raises Refusal if the model cannot be captured, or if the
    format does not support it.
    """
    try:
        chosen.write(capture(model, spec.inputs), variable_axes(spec.inputs), metadata, draft)
    except (Refusal, OSError):
        raise
    except Exception as error:  # exporters and compilers raise exceptions of many types
        raise Refusal(f"{name}: this model cannot be exported ({untrusted.reason(error)}): choose another `--format`") from error


def run_exported(
    chosen: Format, draft: Path, model: Model, rows: NDArray[np.generic], *, threads: int, variable_length: bool
) -> OutputDifference:
    """Load the exported program from `draft`, run the program on `rows`, and return how much its outputs differ from those of `model`.

    `threads` is the number of CPU threads for the program. If `variable_length` is True, shortened samples are compared too. Raises Unequal
    if the program cannot be loaded or run, or if its outputs have another shape. Raises nothing for outputs of other values.
    """
    try:
        return compare(model, chosen.load(draft, threads), rows, variable_length=variable_length)
    except Exception as error:  # runtimes raise exceptions of many types
        raise Unequal(f"the exported program cannot be run, and was not written: {untrusted.reason(error)}") from error


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


def dtype_of_outputs(model: Model, inputs: Inputs) -> str:
    """Return the dtype of the model's outputs: float64 for the numbers of a regression, else float32."""
    with torch.inference_mode():
        return str(model(torch.from_numpy(inputs.random_samples(2))).numpy().dtype)


def metadata(manifest: Manifest, models: Sequence[Path], dtype: str) -> str:
    """Return the metadata of an exported file as canonical JSON: what a reader needs to prepare inputs and to interpret outputs.

    `dtype` is that of the outputs. `models` are the model files; their SHA-256 are recorded. If there are several, `manifest` is that of the first.
    """
    spec = manifest.spec
    contents: dict[str, Any] = {
        "format": FORMAT,
        "model_sha256": "+".join(map(files.digest, models)),
        "classes": spec.targets.output_names,
        "input": {"name": INPUT, "dtype": spec.inputs.dtype.__name__, "shape": shape(spec.inputs)},
        "output": {"name": OUTPUT, "dtype": dtype},
        "spec": spec.model_dump(mode="json"),
        "params": manifest.inference.model_dump(mode="json"),
        "precision": manifest.precision,
        "step": manifest.step,
    }
    return files.canonical(contents)


def compare(model: Model, program: Program, rows: NDArray[np.generic], *, variable_length: bool) -> OutputDifference:
    """Run the model and the exported program on all `rows`, and return how much their outputs differ.

    `rows` has samples in the form in which `prepare` stores them. If `variable_length` is True, shortened samples are compared too. Raises
    ValueError if the shapes of the outputs differ. Exceptions of the program are passed on.
    """
    last = model.postprocessing
    difference = (
        OutputDifference()
        if last is None
        else OutputDifference(np.asarray(dict(last.named_buffers()).get("scale", 1.0)), None, unit=str(last.unit))
    )
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
