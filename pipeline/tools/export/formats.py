"""The formats of exported files: how a program is written in each, and how it is loaded again and run.

ONNX is one file for ONNX Runtime and other runtimes. PT2 is the program of `torch.export`, for PyTorch without this project's code. AOTI is
that program compiled by AOTInductor for the CPU of this machine, to be loaded from C++ or Python.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from pipeline.core.refusal import Refusal

KEY = "pipeline"
"""Name of the metadata in an exported file."""
INPUT, OUTPUT = "inputs", "outputs"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
MOST_BYTES = 2**31 - 2**24
"""Upper bound for the bytes of the weights in an ONNX file: a protocol buffer has at most 2 GiB, and the rest is for the operations."""


Program = Callable[[NDArray[np.generic]], NDArray[np.floating]]
"""Maps an array of samples to outputs."""


class Format(NamedTuple):
    """A format of exported files.

    `write(program, axes, metadata, path)` writes a program to a file; `axes` are the names of the variable axes of its input. It raises Refusal
    if the format does not support the program. `load(path, threads)` returns a function that runs the program in a file on the CPU: it maps an
    array of samples to outputs. `refuse_unavailable()` raises Refusal if a package or a compiler that the format needs is missing.
    """

    suffix: str
    write: Callable[[ExportedProgram, tuple[str, ...], str, Path], None]
    load: Callable[[Path, int], Program]
    refuse_unavailable: Callable[[], None] = lambda: None


def refuse_without_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise Refusal(
            f"--format onnx: {', '.join(missing)} is not installed: run `make setup-export` in the checkout "
            "(the container image has no ONNX: export outside of it, or choose `--format pt2`)"
        )


def write_onnx(program: ExportedProgram, axes: tuple[str, ...], metadata: str, path: Path) -> None:
    """Write the program as ONNX, with the metadata in `metadata_props`. Raises Refusal if the weights are too large for one file."""
    size_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
    if size_bytes > MOST_BYTES:
        raise Refusal(
            f"--format onnx: the weights are {size_bytes / 1e9:.1f} GB, but an ONNX file holds at most 2 GB: choose `--format pt2`"
        )
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
    with path.open("rb") as file:
        return in_torch(torch.export.load(file).module())


def refuse_without_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise Refusal(
            f"--format aoti: there is no C++ compiler `{compiler}`: install g++, set CXX to an installed compiler, "
            "export in the container, which has g++, or choose `--format pt2`"
        )


def write_aoti(program: ExportedProgram, _: tuple[str, ...], metadata: str, path: Path) -> None:
    """Compile the program with AOTInductor, and write the package, with the metadata in it."""
    from torch import _inductor  # late: it imports the compiler, which takes seconds

    with path.open("w+b") as file:
        _inductor.aoti_compile_and_package(program, package_path=file, inductor_configs={"aot_inductor.metadata": {KEY: metadata}})


def load_aoti(path: Path, _: int) -> Program:
    from torch import _inductor

    with path.open("rb") as file:
        return in_torch(_inductor.aoti_load_package(file))


def in_torch(module: Callable[[torch.Tensor], Any]) -> Program:
    """Return a function that runs a loaded program, with as many threads as PyTorch has in this process."""

    def run(inputs: NDArray[np.generic]) -> NDArray[np.floating]:
        with torch.inference_mode():
            outputs: NDArray[np.floating] = module(torch.from_numpy(inputs)).numpy()
        return outputs

    return run


FORMATS = {
    "onnx": Format(".onnx", write_onnx, load_onnx, refuse_without_packages),
    "pt2": Format(".pt2", write_pt2, load_pt2),
    "aoti": Format(".aoti.pt2", write_aoti, load_aoti, refuse_without_compiler),
}
