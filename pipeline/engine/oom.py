"""OOM handling: repeats the step from its beginning with micro-batches of half the size."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from pipeline.engine.state import Progress, TrainState
from pipeline.refusal import Refusal

Result = TypeVar("Result")
SIGNS = ("CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "Triton Error [CUDA]: out of memory")
NO_ENGINE = "unable to find an engine to execute this computation"
"""cuDNN's message for a convolution that is unsupported or does not fit in memory; an OOM count above 0 indicates the latter."""


def in_parts_that_fit(attempt: Callable[[int], Result], state: TrainState, progress: Progress, *, whole: bool) -> Result:
    """Run `attempt(micro_batch_size)`, halving the micro-batch until it fits in device memory.

    Gradients and BatchNorm statistics, which a failed attempt leaves incomplete, are reset before each retry. Raises Refusal
    after an OOM with a micro-batch of one sample, or where the batch must stay `whole`.
    """
    while True:
        try:
            return attempt(progress.micro_batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # retry outside the handler: its exception keeps the allocated tensors alive
        if whole:
            raise Refusal(f"train.compile: out of memory at step {state.step + 1}, and `graphs` takes a batch whole: write `default`")
        make_room(state)
        halve(state, progress)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return True where a CUDA, cuDNN, cuBLAS or Triton error means that device memory ran out."""
    said = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(sign in said for sign in SIGNS):
        return True
    return NO_ENGINE in said and torch.cuda.memory_stats().get("num_ooms", 0) > 0


def make_room(state: TrainState) -> None:
    """Drop the gradients, restore the BatchNorm statistics of before the step, and release cached device memory."""
    state.drop_gradients()
    state.buffers.put_back()
    gc.collect()
    if state.device.type == "cuda":
        torch.cuda.empty_cache()


def halve(state: TrainState, progress: Progress) -> None:
    """Halve the micro-batch size from the current step on. Raises Refusal where it is 1 already."""
    step, size = state.step + 1, progress.micro_batch_size // 2
    if not size:
        raise Refusal(
            f"train.micro_batch_size: out of memory at step {step} with one sample: choose a smaller model or image, "
            "set `activation_checkpointing: true`, or free the memory that others use"
        )
    progress.switch(step, size)
    print(
        f"train: out of memory at step {step}: micro-batches of {size} from here on; to begin so, write `micro_batch_size: {size}` in params.yaml",
        flush=True,
    )
