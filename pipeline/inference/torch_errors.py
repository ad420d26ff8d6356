"""Turns torch errors that the user can fix into Refusals that name the parameter to change."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.core.refusal import Refusal

OOM_SIGNS = (
    "_ALLOC_FAILED",  # cuBLAS, cuSOLVER and cuFFT, and cuDNN before version 9
    "_ALLOCATION_FAILED",  # cuDNN
    "CUDA error: out of memory",
    "CUDA ran out of memory outside PyTorch's allocator",
    "Triton Error [CUDA]: out of memory",
    "Cuda failure 2 'out of memory'",  # NCCL
    "Cuda failure 'out of memory'",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",  # the allocator before torch 2.15, as it describes an OOM where NVML does not work
    "DefaultCPUAllocator: can't allocate memory",
    "could not create a primitive",  # oneDNN
)
UNSURE_SIGNS = ("unable to find an engine to execute this computation", "_STATUS_NOT_INITIALIZED", "_STATUS_INTERNAL_ERROR")
"""Messages of cuDNN, cuBLAS and cuSOLVER. These libraries allocate memory beside PyTorch, and say this where it is missing, but also of a
convolution that is unsupported, or if they are not installed correctly. `memory_is_short` decides."""
LITTLE_BYTES = 2**30
"""With less free memory on the GPU, these libraries may be unable to load their kernels, which take some hundreds of megabytes."""
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


class OutOfMemory(Refusal):
    """Raised if the memory does not suffice even for the smallest micro-batch, or where no step can be repeated."""


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
            kind = OutOfMemory if isinstance(error, RuntimeError) and is_out_of_memory(error) else Refusal
            raise kind(f"{remedy} ({str(error).splitlines()[0]})") from error
        raise


def remedies(error: Exception, size: str) -> Iterator[str]:
    """Yield the remedies that apply to `error`. `size` names what to make smaller after an OOM, mostly a key of params.yaml."""
    if isinstance(error, RuntimeError) and is_out_of_memory(error):
        yield f"{size}: out of memory, and a retry with smaller micro-batches is not possible here: choose a smaller {size}, or free memory that other processes use"
    yield from (remedy for sign, remedy in REMEDIES.items() if sign in str(error))
    if any(sign in str(error) for sign in MISFIT_SIGNS) and (place := place_in_model(error)):
        yield f"model.name: in {place}, a layer does not fit the size of its input: correct it, change a parameter of `model`, choose another model, or use larger images"


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
    """Return True if `error` was caused by a lack of memory: an error of PyTorch, the libraries of CUDA, Triton or the allocator of the CPU."""
    message = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(sign in message for sign in OOM_SIGNS):
        return True
    return any(sign in message for sign in UNSURE_SIGNS) and memory_is_short()


def memory_is_short() -> bool:
    """Return True if PyTorch's allocator has lacked memory of the GPU before, or if less than LITTLE_BYTES of it are free now."""
    return torch.cuda.memory_stats().get("num_ooms", 0) > 0 or torch.cuda.mem_get_info()[0] < LITTLE_BYTES
