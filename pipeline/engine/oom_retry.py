"""Handles out-of-memory errors (OOM): repeats a step from its beginning, each time with micro-batches of half the size."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from pipeline.engine.state import MicroBatchChange, Progress, TrainState
from pipeline.engine.torch_errors import is_out_of_memory
from pipeline.refusal import Refusal

Result = TypeVar("Result")


class RestartWithSmallerMicroBatch(Exception):
    """Raised after an OOM in a step that several processes share: none of them can repeat its part of the step alone.

    All processes must continue from a checkpoint, with micro-batches of at most `micro_batch_size` samples from `step` on.
    """

    def __init__(self, step: int, micro_batch_size: int) -> None:
        super().__init__(f"out of memory at step {step}")
        self.change: MicroBatchChange = {"step": step, "micro_batch_size": micro_batch_size}


def retry(attempt: Callable[[int], Result], state: TrainState, progress: Progress, *, largest: int, whole: bool) -> Result:
    """Call `attempt(micro_batch_size)`, halving the size after each OOM until the call succeeds. Return its result.

    Before each retry, the gradients are dropped and the BatchNorm statistics restored, because the failed attempt left them incomplete.
    `largest` is the number of samples of a lane, which limits the micro-batch size. `whole` is True if the batch must not be split. Raises Refusal after an OOM if `whole` is True or the micro-batch size is already 1.
    Raises RestartWithSmallerMicroBatch after an OOM if several processes train together.
    """
    while True:
        try:
            return attempt(progress.micro_batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # retry after the `except` block: inside it, the exception keeps the attempt's tensors alive
        if whole:
            raise Refusal(
                f"train.compile: out of memory at step {state.step + 1}, and `graphs` cannot use a smaller micro-batch: write `train.compile: default`"
            )
        if state.lanes and state.lanes.processes.size > 1:
            raise RestartWithSmallerMicroBatch(state.step + 1, smaller(state, progress, largest))
        make_room(state)
        halve_micro_batch(state, progress, largest)


def make_room(state: TrainState) -> None:
    """Drop the gradients, also those of earlier lanes; restore the BatchNorm statistics to those before the step, and release cached device memory."""
    state.drop_gradients()
    if state.lanes:
        state.lanes.pending.clear()
    state.buffers.put_back()
    gc.collect()
    if state.device.type == "cuda":
        torch.cuda.empty_cache()


def halve_micro_batch(state: TrainState, progress: Progress, largest: int) -> None:
    """Halve the micro-batch size from the current step on, and print the new size. Raises Refusal if the size is already 1."""
    size = smaller(state, progress, largest)
    progress.change_micro_batch(state.step + 1, size)
    print(
        f"train: out of memory at step {state.step + 1}: using micro-batches of {size} from this step on; "
        f"to start with this size, write `train.micro_batch_size: {size}` in params.yaml",
        flush=True,
    )


def smaller(state: TrainState, progress: Progress, largest: int) -> int:
    """Return half the micro-batch size. Raises Refusal if the size is already 1."""
    size = min(progress.micro_batch_size, largest) // 2
    if not size:
        raise Refusal(
            f"train.micro_batch_size: out of memory at step {state.step + 1} with one sample: choose a smaller model or image, "
            "set `train.activation_checkpointing: true`, or free memory that other processes use"
        )
    return size
