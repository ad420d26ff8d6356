"""Out of memory: the same step again, from its beginning, in micro-batches of half the size."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from pipeline.engine.state import Progress, TrainState
from pipeline.refusal import Refusal

Result = TypeVar("Result")
SIGNS = ("CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "Triton Error [CUDA]: out of memory")
NO_ENGINE = "unable to find an engine to execute this computation"
"""What cuDNN says of a convolution that it cannot compute, or has no memory for."""


def in_parts_that_fit(attempt: Callable[[int], Result], state: TrainState, progress: Progress, *, whole: bool) -> Result:
    """`attempt(micro_batch_size)`, which may leave gradients and BatchNorm's statistics half made when memory runs out.

    Raises Refusal when even a micro-batch of one sample does not fit, or the batch must stay `whole`.
    """
    while True:
        try:
            return attempt(progress.micro_batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # outside of the handler: its exception holds the tensors that did fit
        if whole:
            raise Refusal(f"train.compile: out of memory at step {state.step + 1}, and `graphs` takes a batch whole: write `default`")
        make_room(state)
        halve(state, progress)


def is_out_of_memory(error: RuntimeError) -> bool:
    said = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(sign in said for sign in SIGNS):
        return True
    return NO_ENGINE in said and torch.cuda.memory_stats().get("num_ooms", 0) > 0


def make_room(state: TrainState) -> None:
    """As before the step: no gradient, BatchNorm's statistics put back, freed memory given back to the device."""
    state.drop_gradients()
    state.buffers.put_back()
    gc.collect()
    if state.device.type == "cuda":
        torch.cuda.empty_cache()


def halve(state: TrainState, progress: Progress) -> None:
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
