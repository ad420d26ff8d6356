"""`python -m pipeline export`: write a model as a program for other runtimes, once its outputs were found equal to those of the model."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch.export import ExportedProgram

from pipeline.core import files, untrusted
from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import TEST
from pipeline.core.refusal import Refusal, counted
from pipeline.core.spec import Spec
from pipeline.inference import model_file
from pipeline.inference.machine import Machine
from pipeline.inference.networks import Model
from pipeline.tools.export import aoti, onnx, program, pt2
from pipeline.tools.export.program import Difference, Program


def run(subject: str, format: str, output: str | None) -> int:  # noqa: A002  # the names of the command line
    """Write a model to a file in another format. Print the path of this file, and the largest difference between its outputs and those of
    the model.

    `subject` is the path of a model file, a run, or the address of a model in MLflow. `format` is "onnx", "pt2" or "aoti". `output` is the
    path to write. If it is None, the file is written beside the model file or, for a run or a model in MLflow, in `models/`. Returns 0; but
    returns 1 and writes no file if an output differs by more than the tolerance (TOLERANCE), or if the file cannot be run.
    """
    from pipeline.tracking import subject as subjects

    paths, environment = Paths(), Environment.read()
    try:
        with subjects.located(subject, paths, environment) as model:
            # a model of MLflow is in a temporary folder, and that of a run in its journal
            beside = model if Path(subject).is_file() else paths.model
            target = Path(output) if output else default_output(beside, format)
            for line in export(model, format, target, paths, environment):
                print(f"export: {line}", flush=True)
    except Unequal as unequal:
        print(f"error: {unequal}", file=sys.stderr)
        return 1
    return 0


NUM_RANDOM = 64
"""Number of random samples for the comparison if the test split is not available."""


class Unequal(Exception):
    """Raised if an exported program cannot be run, or if its outputs are not those of the model."""


class Format(Protocol):
    """A module that writes and runs files of one format."""

    SUFFIX: str

    def refuse_unavailable(self) -> None: ...

    def write(self, program: ExportedProgram, axes: tuple[str, ...], metadata: str, path: Path) -> None: ...

    def load(self, path: Path, *, threads: int) -> Program: ...


FORMATS: dict[str, Format] = {"onnx": onnx, "pt2": pt2, "aoti": aoti}


def default_output(model: Path, name: str) -> Path:
    """Return the path beside a model file at which an export in the format `name` is written by default."""
    return model.with_name(model.stem + FORMATS[name].SUFFIX)


def export(path: Path, name: str, target: Path, paths: Paths, environment: Environment) -> Iterator[str]:
    """Write the model of the file `path` in the format `name` to `target`, and yield lines for the user about the result.

    The lines tell what was written, and the largest difference between the outputs of the exported program and those of the model. `target`
    is written only if the outputs are equal within the tolerance. Raises Unequal if they are not, or if the program cannot be run. Raises
    Refusal if the model file, the output path or the prepared data cannot be used, if a package or compiler that the format needs is
    missing, or if the format does not support the model.
    """
    chosen = FORMATS[name]
    chosen.refuse_unavailable()
    model, manifest = model_file.load(path)
    refuse_output(target, model=path)
    machine = Machine.set_up(environment.model_copy(update={"device": "cpu"}))
    inputs = manifest.spec.inputs
    rows, origin = samples(manifest.spec, paths)
    with files.replacing(target) as draft:
        write(draft, chosen, program.in_float32(model), manifest.spec, program.metadata(manifest, path), name=f"--format {name}")
        size = draft.stat().st_size
        difference = run_exported(chosen, draft, model, rows, threads=machine.threads, variable_length=program.has_variable_length(inputs))
        if not difference.within_tolerance:
            raise Unequal(f"{target}: was not written, because its outputs on {origin} are not those of the model: {difference}")
    shape = ", ".join(map(str, program.shape(inputs)))
    yield f"{target} ({size / 1e6:.2f} MB) takes ({shape}) {inputs.dtype.__name__}, returns float32"
    shortened = ", and on two of them cut to half their length" if program.has_variable_length(inputs) else ""
    yield f"compared on {origin}{shortened}: {difference}"


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
    is_other = not spec.inputs.reads_samples_of(prepared.spec.inputs) or prepared.spec.targets != spec.targets
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
        chosen.write(program.capture(model, spec.inputs), program.variable_axes(spec.inputs), metadata, draft)
    except (Refusal, OSError):
        raise
    except Exception as error:  # exporters and compilers raise exceptions of many types
        raise Refusal(f"{name}: this model cannot be exported ({untrusted.reason(error)}): choose another `--format`") from error


def run_exported(
    chosen: Format, draft: Path, model: Model, rows: NDArray[np.generic], *, threads: int, variable_length: bool
) -> Difference:
    """Load the exported program from `draft`, run the program on `rows`, and return how much its outputs differ from those of `model`.

    `threads` is the number of CPU threads for the program. If `variable_length` is True, shortened samples are compared too. Raises Unequal
    if the program cannot be loaded or run, or if its outputs have another shape. Raises nothing for outputs of other values.
    """
    try:
        return program.compare(model, chosen.load(draft, threads=threads), rows, variable_length=variable_length)
    except Exception as error:  # runtimes raise exceptions of many types
        raise Unequal(f"the exported program cannot be run, and was not written: {untrusted.reason(error)}") from error
