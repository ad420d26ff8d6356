"""Turns torch errors that the user can fix into Refusals that name the parameter to change."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.core.refusal import Refusal

OOM_SIGNS = (
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
)
NO_ENGINE = "unable to find an engine to execute this computation"
"""cuDNN's message for a convolution that is unsupported or does not fit in memory. If OOMs were counted, it does not fit in memory."""
MISFIT_SIGNS = (
    "shapes cannot be multiplied",
    "channels, but got",
    "must be equal to input_size",
    "Kernel size can't be greater than actual input size",
    "Output size is too small",
)
REMEDIES = {
    "Expected more than 1 value per channel": "train.micro_batch_size: BatchNorm needs more than one value per channel: write a larger size",
    "does not have a deterministic implementation": "train.deterministic: the model has an operation that is not deterministic: write `train.deterministic: false`, or choose another model",
    "libcuda.so cannot found": 'train.compile: the compiler does not find libcuda.so.1 of the NVIDIA driver: set TRITON_LIBCUDA_PATH to its folder, or write `train.compile: "off"`',
    "Failed to find C compiler": 'train.compile: the compiler needs a C compiler: install gcc, or write `train.compile: "off"`',
}


@contextmanager
def with_remedies(*, size: str) -> Iterator[None]:
    """Within this context, turn torch errors with a known remedy into Refusals. Other errors propagate.

    The message of the Refusal is the remedy and the first line of the error. `size` names what to make smaller after an OOM, mostly a key
    of params.yaml, such as `train.micro_batch_size`.
    """
    try:
        yield
    except Refusal:
        raise
    except (RuntimeError, ValueError) as error:
        for remedy in remedies(error, size):
            raise Refusal(f"{remedy} ({str(error).splitlines()[0]})") from error
        raise


def remedies(error: Exception, size: str) -> Iterator[str]:
    """Yield the remedies that apply to `error`. `size` names what to make smaller after an OOM, mostly a key of params.yaml."""
    if isinstance(error, RuntimeError) and is_out_of_memory(error):
        yield f"{size}: out of memory, and a retry with smaller micro-batches is not possible here: choose a smaller {size}, or free memory that other processes use"
    yield from (remedy for sign, remedy in REMEDIES.items() if sign in str(error))
    if any(sign in str(error) for sign in MISFIT_SIGNS) and (place := place_in_model(error)):
        yield f"model.name: in {place}, a layer does not fit the size of its input: correct it, choose another model, or larger images"


def place_in_model(error: Exception) -> str:
    """Return the line of the model's file in which `error` was raised, "the network" if only calls of torch.nn are known, or "" if it was
    not raised in the forward pass of a network.
    """
    package = Path(__file__).parents[1]
    calls = [call for call in traceback.extract_tb(error.__traceback__) if package in Path(call.filename).parents]
    path = Path(calls[-1].filename).relative_to(package.parent).as_posix() if calls else ""
    if path == "pipeline/inference/networks.py":
        return "the network"
    return f"{path}:{calls[-1].lineno}" if path.startswith("pipeline/models/") else ""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return True if `error` was caused by a lack of memory: an error of CUDA, cuDNN, cuBLAS, Triton or the allocator of the CPU."""
    message = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(sign in message for sign in OOM_SIGNS):
        return True
    return NO_ENGINE in message and torch.cuda.memory_stats().get("num_ooms", 0) > 0
