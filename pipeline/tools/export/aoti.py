"""AOTI: the program compiled by AOTInductor for the CPU of this machine, to be loaded from C++ or Python. The metadata is in the package."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from pipeline.core.refusal import Refusal
from pipeline.tools.export.program import KEY

SUFFIX = ".aoti.pt2"


def refuse_unavailable() -> None:
    """Raise Refusal if there is no C++ compiler: AOTInductor needs one to compile the exported program."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise Refusal(
            f"--format aoti: there is no C++ compiler `{compiler}`: install g++, set CXX to an installed compiler, "
            "export in the container, which has g++, or choose `--format pt2`"
        )


def write(program: ExportedProgram, axes: tuple[str, ...], metadata: str, path: Path) -> None:  # noqa: ARG001  # the file has no axis names
    """Compile the program with AOTInductor, and write the compiled program and `metadata` to the file `path`. `axes` is ignored."""
    from torch import _inductor  # late: it imports the compiler, which takes seconds

    with path.open("w+b") as file:
        _inductor.aoti_compile_and_package(program, package_path=file, inductor_configs={"aot_inductor.metadata": {KEY: metadata}})


def load(path: Path, *, threads: int) -> Callable[[NDArray[np.generic]], NDArray[np.float32]]:  # noqa: ARG001  # those of this process
    """Load the compiled program in the file `path`. Return a function that runs the program: it maps an array of samples to outputs.

    `threads` is ignored: the program uses as many threads as PyTorch does in this process.
    """
    from torch import _inductor  # late: it imports the compiler, which takes seconds

    with path.open("rb") as file:
        compiled = _inductor.aoti_load_package(file)

    def run(inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        with torch.inference_mode():
            outputs: NDArray[np.float32] = compiled(torch.from_numpy(inputs)).numpy()
        return outputs

    return run
