"""`python -m pipeline export`: write a model as a program for other runtimes, once its outputs were found equal to those of the model.

ONNX is one file for ONNX Runtime and other runtimes. PT2 is the program of `torch.export`, for PyTorch without this project's code.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

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
from pipeline.tools.compare.models import Member, averaged

FORMAT = "pipeline-export-1"
KEY = "pipeline"
"""Name of the metadata in an exported file."""
INPUT, OUTPUT = "inputs", "outputs"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
TOLERANCE = 1e-4
"""Largest allowed difference of an output: of logits and probabilities, or of numbers in their standard deviations."""
BATCH_SIZE = 32
NUM_RANDOM = 64
"""Number of random samples for the comparison if the test split is not available."""

Program = Callable[[NDArray[np.generic]], NDArray[np.floating]]
"""Maps an array of samples to outputs."""


class Unequal(Refusal):
    """Raised if an exported program cannot be run, or if its outputs are not those of the model."""

    exit_code = 1


def run(subject: str, format: str, output: str | None, others: Sequence[str]) -> None:  # noqa: A002  # the names of the command line
    """Write a model to a file in another format. Print the path of this file, and the largest difference between its outputs and those of
    the model.

    `subject` names the model: see `runs/find.py`. `format` is "onnx" or "pt2". `output` is the path to write. If it is None, the file is
    written beside the model file or, for a run or a model in MLflow, in `models/`. With `others`, the names of further models, it gives the
    mean of the probabilities of all, and its default name is `ensemble`.
    """
    if format == "onnx" and (missing := [name for name in PACKAGES if find_spec(name) is None]):
        remedy = "run `make setup-export` in the checkout (the container image has no ONNX: export outside of it, or choose `--format pt2`)"
        raise Refusal(f"--format onnx: {', '.join(missing)} is not installed: {remedy}")
    paths, environment = Paths(), Environment.read()
    with ExitStack() as stack:
        found = [stack.enter_context(find.located(name, paths, environment)) for name in (subject, *others)]
        # a model of MLflow is in a temporary folder, and that of a run in its journal
        beside = found[0].path if found[0].is_file else paths.model
        target = Path(output) if output else beside.with_name(f"{'ensemble' if others else beside.stem}.{format}")
        if target.is_dir() or not target.parent.is_dir() or target.suffix == paths.model.suffix:
            raise Refusal(f"--output {target}: should be the name of a file in a folder that exists, and of no model file")
        export([each.path for each in found], format, target, paths, environment)


def export(models: Sequence[Path], name: str, target: Path, paths: Paths, environment: Environment) -> None:
    """Write the model of the file `models[0]`, or several models as one, in the format `name` to `target`, and print how its outputs were compared.

    `target` is written only if the outputs are equal within the tolerance. Raises Unequal if they are not, or if the program cannot be run.
    Raises Refusal if the model file or the prepared data cannot be used, or if the format does not support the model.
    """
    members = [Member(str(path), *model_file.load(path, complete=True)) for path in models]
    model, manifest = averaged(members), members[0].manifest
    inputs = manifest.spec.inputs
    if manifest.spec.targets.stored == "within":
        problem = "this model writes texts token by token, and an exported program has no loop for it"
        raise Refusal(f"--format {name}: {problem}: use `load_model` or a model of MLflow")
    for _, member, _ in members:
        # ONNX Runtime cannot compute convolutions in bf16 on a CPU, and compilers round bf16 at other places than PyTorch does.
        member.float().bf16_weights = False
    threads = Machine.set_up(environment.model_copy(update={"device": "cpu"})).threads
    rows, origin = samples(manifest.spec, paths)
    with torch.inference_mode():
        dtype = str(model(torch.from_numpy(inputs.random_samples(2))).numpy().dtype)
    axes, written = variable_axes(inputs), FORMATS[name]
    with files.replacing(target) as draft:
        try:
            written.write(capture(model, inputs), axes, metadata(manifest, models, dtype), draft)
        except OSError:
            raise
        except Exception as error:  # exporters raise exceptions of many types
            problem = f"this model cannot be exported ({untrusted.reason(error)})"
            raise Refusal(f"--format {name}: {problem}: choose another `--format`") from error
        try:
            largest = compare(model, written.load(draft, threads), rows, variable_length=len(axes) > 1)
        except Exception as error:  # so do runtimes
            raise Unequal(f"{target}: was not written, because the exported program cannot be run: {untrusted.reason(error)}") from error
        unit = f", in {model.postprocessing.unit}" if model.postprocessing else ""
        difference = f"largest difference {largest:.2g} (allowed: {TOLERANCE:.0e}){unit}"
        if not largest <= TOLERANCE:  # NaN, too
            raise Unequal(f"{target}: was not written, because its outputs on {origin} are not those of the model: {difference}")
    sizes = ", ".join(map(str, shape(inputs)))
    print(f"export: {target} ({target.stat().st_size / 1e6:.2f} MB) takes ({sizes}) {inputs.dtype.__name__}, returns {dtype}")
    print(f"export: compared on {origin}: {difference}")


def samples(spec: Spec, paths: Paths) -> tuple[NDArray[Any], str]:
    """Return samples for the comparison, and a description of them for the user. `spec` describes the dataset of the model.

    The samples are those of the test split, or random if there is no prepared data with a test split, the same targets, and inputs that the
    model can read. Raises Refusal if the prepared data is damaged.
    """
    if (paths.prepared / "spec.json").exists():
        prepared = Prepared.open(paths.prepared)
        is_same = spec.inputs.reads_samples_of(prepared.spec.inputs) and spec.targets.has_targets_of(prepared.spec.targets)
        if is_same and TEST in prepared.splits:
            inputs = prepared.split(TEST).inputs
            return inputs, f"the {counted(len(inputs), 'sample')} of the test split"
    reason = f"because {paths.prepared} has no test split of the model's dataset"
    return spec.inputs.random_samples(NUM_RANDOM), f"{NUM_RANDOM} random samples, {reason}"


def capture(model: Model, inputs: Inputs) -> ExportedProgram:
    """Return `model`, which must be in evaluation mode, as a program of tensor operations. `inputs` describes the model's inputs.

    The program includes the preprocessing. Its input is a batch of samples in the form in which `prepare` stores them. The batch size is
    variable and, for texts, the length too. Exceptions of `torch.export` are passed on: it cannot capture every model.
    """
    example = torch.from_numpy(inputs.random_samples(2))  # of two samples: a size of one would become a constant
    # AUTO allows an upper bound, such as the number of positions of a transformer; DYNAMIC raises an exception for any bound
    sizes = dict(enumerate((Dim.DYNAMIC, Dim.AUTO)[: len(variable_axes(inputs))]))
    return torch.export.export(model, (example,), dynamic_shapes=(sizes,))


def variable_axes(inputs: Inputs) -> tuple[str, ...]:
    """Return the names of those axes of a program's input whose size is variable. They are always the first axes.

    The batch axis is always variable. The second axis, the length, is variable if the samples are padded, as texts are.
    """
    return ("batch",) if inputs.lengths(inputs.random_samples(1)) is None else ("batch", "length")


def shape(inputs: Inputs) -> list[str | int]:
    """Return the shape of a program's input: first the name of each variable axis, then the size of each other axis."""
    axes = variable_axes(inputs)
    return [*axes, *inputs.row_shape[len(axes) - 1 :]]


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


def compare(model: Model, program: Program, rows: NDArray[np.generic], *, variable_length: bool) -> float:
    """Run the model and the exported program on all `rows`, and return the largest difference of an output; NaN if one is NaN.

    The difference of numbers is in their standard deviations. `rows` has samples in the form in which `prepare` stores them. If
    `variable_length` is True, shortened samples are compared too. Raises ValueError if the shapes of the outputs differ. Exceptions of the
    program are passed on.
    """
    scale = dict(model.postprocessing.named_buffers()).get("scale", torch.ones(1)) if model.postprocessing else torch.ones(1)
    largest = 0.0
    with progress("export", len(rows), "samples") as advance:
        for batch in advance.each(batches(rows, variable_length=variable_length), len):
            with torch.inference_mode():
                expected = model(torch.from_numpy(batch)).numpy()
            found = program(batch)
            if expected.shape != found.shape:
                raise ValueError(f"outputs have shape {found.shape} instead of {expected.shape}")
            largest = float(np.maximum(largest, (np.abs(expected - found) / scale.numpy()).max()))  # `maximum` keeps NaN
    return largest


def batches(rows: NDArray[np.generic], *, variable_length: bool) -> Iterator[NDArray[np.generic]]:
    """Yield all `rows` in batches of different sizes, because an exported program must work for any batch size.

    If `variable_length` is True, first yield the first two rows, cut to half their length, because the program must then work for any
    length.
    """
    if variable_length:
        yield np.ascontiguousarray(rows[:2, : (rows.shape[1] + 1) // 2])
    yield rows[:1]
    for first in range(1, len(rows), BATCH_SIZE):
        yield rows[first : first + BATCH_SIZE]


class Format(NamedTuple):
    """A format of exported files.

    `write(program, axes, metadata, path)` writes a program to a file; `axes` are the names of the variable axes of its input.
    `load(path, threads)` returns a function that runs the program in a file on the CPU: it maps an array of samples to outputs.
    """

    write: Callable[[ExportedProgram, tuple[str, ...], str, Path], None]
    load: Callable[[Path, int], Program]


def write_onnx(program: ExportedProgram, axes: tuple[str, ...], metadata: str, path: Path) -> None:
    """Write the program as ONNX, with the metadata in `metadata_props`."""
    onnx_program = torch.onnx.export(
        program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=(dict(enumerate(axes)),), verbose=False
    )
    assert onnx_program is not None
    onnx_program.model.metadata_props[KEY] = metadata
    path.write_bytes(onnx_program.model_proto.SerializeToString(deterministic=True))


def load_onnx(path: Path, threads: int) -> Program:
    """Load an ONNX file for ONNX Runtime, with `threads` threads for each operation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: np.asarray(session.run([OUTPUT], {INPUT: inputs})[0])


def write_pt2(program: ExportedProgram, _: tuple[str, ...], metadata: str, path: Path) -> None:
    """Write the program as a PT2 archive, with the metadata in an extra file, `pipeline.json`."""
    with path.open("w+b") as file, warnings.catch_warnings():
        # weights in the channels-last format are stored whole, but torch does not recognise that
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")
        torch.export.save(program, file, extra_files={f"{KEY}.json": metadata})


def load_pt2(path: Path, _: int) -> Program:
    """Load a PT2 archive, which runs with as many threads as PyTorch has in this process."""
    with path.open("rb") as file:
        module = torch.export.load(file).module()

    @torch.inference_mode()
    def run(inputs: NDArray[np.generic]) -> NDArray[np.floating]:
        outputs: NDArray[np.floating] = module(torch.from_numpy(inputs)).numpy()
        return outputs

    return run


FORMATS = {"onnx": Format(write_onnx, load_onnx), "pt2": Format(write_pt2, load_pt2)}
