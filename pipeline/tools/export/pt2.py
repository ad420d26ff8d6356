"""PT2: the program of `torch.export`, for PyTorch without this project's code. The metadata is an extra file, `pipeline.json`."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from pipeline.tools.export.program import KEY

SUFFIX = ".pt2"


def refuse_unavailable() -> None:
    """Do nothing: PyTorch is all that this format needs."""


def write(program: ExportedProgram, axes: tuple[str, ...], metadata: str, path: Path) -> None:  # noqa: ARG001  # the file has no axis names
    """Write the program as a PT2 archive."""
    with path.open("w+b") as file, warnings.catch_warnings():
        # weights in the channels-last format are stored whole, but torch does not recognise that
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")
        torch.export.save(program, file, extra_files={f"{KEY}.json": metadata})


def load(path: Path, *, threads: int) -> Callable[[NDArray[np.generic]], NDArray[np.float32]]:  # noqa: ARG001  # those of this process
    """Load the program in the PT2 archive `path`. Return a function that runs the program: it maps an array of samples to outputs.

    PyTorch computes on the CPU. `threads` is ignored: the number of threads that is set in PyTorch does not change.
    """
    with path.open("rb") as file:
        module = torch.export.load(file).module()

    def run(inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        with torch.inference_mode():
            outputs: NDArray[np.float32] = module(torch.from_numpy(inputs)).numpy()
        return outputs

    return run
