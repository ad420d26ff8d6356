"""ONNX: one file for ONNX Runtime and other runtimes. The metadata is in `metadata_props`."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from pipeline.core.refusal import Refusal
from pipeline.tools.export.program import INPUT, KEY, OUTPUT

SUFFIX = ".onnx"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
MOST_BYTES = 2**31 - 2**24
"""Upper bound for the bytes of the weights: a protocol buffer has at most 2 GiB, and the rest is for the operations."""


def refuse_unavailable() -> None:
    """Raise Refusal if a package that this format needs is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise Refusal(
            f"--format onnx: {', '.join(missing)} is not installed: run `make setup-export` in the checkout "
            "(the container image has no ONNX: export outside of it, or choose `--format pt2`)"
        )


def write(program: ExportedProgram, axes: tuple[str, ...], metadata: str, path: Path) -> None:
    """Write the program as ONNX. `axes` are the names of the variable axes. Raises Refusal if the weights are too large for one file."""
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


def load(path: Path, *, threads: int) -> Callable[[NDArray[np.generic]], NDArray[np.float32]]:
    """Load the program in the ONNX file `path`. Return a function that runs the program: it maps an array of samples to outputs.

    ONNX Runtime computes on the CPU, with `threads` threads for each operation.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        (outputs,) = session.run([OUTPUT], {INPUT: inputs})
        return np.asarray(outputs)

    return run
