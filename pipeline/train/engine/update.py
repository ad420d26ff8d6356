"""Performs one optimizer update on one batch. The gradients are accumulated over micro-batches, which are halved if memory runs out.

With `train.lanes: 1`, the default, a lane is the whole batch of this process: see train/group/lanes.py.
"""

import gc
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from pipeline.core.refusal import Refusal
from pipeline.core.seeding import reseed
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.inference.torch_errors import OutOfMemory, is_out_of_memory
from pipeline.train.engine.metrics import LOSS, NORM, SKIPPED
from pipeline.train.engine.state import Progress, TrainState
from pipeline.train.engine.step import Step, StepSettings
from pipeline.train.group.lanes import Sums

Result = TypeVar("Result")


def retry(attempt: Callable[[int], Result], state: TrainState, progress: Progress, step: Step, *, largest: int, may_split: bool) -> Result:
    """Call `attempt(micro_batch_size)`, halving the size after each OOM until the call succeeds. Return its result.

    Before each retry, the gradients are dropped and the BatchNorm statistics restored, because the failed attempt left them incomplete. If
    `step` holds memory of CUDA graphs, this is released first, and the size stays: graphs must not change which size fits.
    `largest` is the number of samples of a lane, which limits the micro-batch size. Raises Refusal after an OOM if the
    batch may not be split, or if the micro-batch size is already 1. If several processes train together, this process ends
    instead, and all of them are started again.
    """
    while True:
        try:
            return attempt(progress.micro_batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # retry after the `except` block: inside it, the exception keeps the attempt's tensors alive
        if step.release():
            make_room(state, step)
            continue
        if not may_split:
            raise Refusal(
                f"train.compile: out of memory at step {state.step + 1}, and `graphs` cannot use a smaller micro-batch: write `train.compile: default`"
            )
        size = min(progress.micro_batch_size, largest) // 2
        if not size:
            raise OutOfMemory(
                f"train.micro_batch_size: out of memory at step {state.step + 1} with one sample: choose a smaller model or image, "
                "set `train.activation_checkpointing: true`, or free memory that other processes use"
            )
        state.lanes.begin_again(state.step + 1, size)
        make_room(state, step)
        progress.change_micro_batch(state.step + 1, size)
        print(
            f"train: out of memory at step {state.step + 1}: using micro-batches of {size} from this step on; "
            f"to start with this size, write `train.micro_batch_size: {size}` in params.yaml",
            flush=True,
        )


def make_room(state: TrainState, step: Step) -> None:
    """Drop the gradients, restore the BatchNorm statistics to those before the step, and release cached device memory."""
    state.drop_gradients()
    if step.has_begun:
        state.buffers.put_back()
    gc.collect()
    if state.device.type == "cuda":
        torch.cuda.empty_cache()


def update(state: TrainState, batch: BlockBatch, progress: Progress, settings: StepSettings, step: Step) -> None:
    """Train on `batch`: advance `state` by one step, and add the metrics of this step to `progress`. `step` computes on the device.

    After an OOM in the forward or backward pass, the gradients are computed again with smaller micro-batches. An OOM in the optimizer step is
    not retried. Raises Refusal if a single sample does not fit in memory. If `train.compile` is "graphs", the micro-batch size cannot
    change, so any OOM in these passes raises Refusal.
    """
    step.begin(batch.num_targets, settings.learning_rate)
    attempt = partial(accumulate_gradients, state, batch, seed=settings.seed, step=step)
    loss, sums = retry(attempt, state, progress, step, largest=batch.lane_size, may_split=settings.may_split)
    norm, skipped = step.update(loss, settings)
    assert sums.keys().isdisjoint((LOSS, NORM, SKIPPED))
    progress.window.add(batch.num_targets, {LOSS: loss, NORM: norm, SKIPPED: skipped, **sums})
    state.step += 1


def accumulate_gradients(state: TrainState, batch: BlockBatch, micro_batch_size: int, *, seed: int, step: Step) -> Sums:
    """Compute the gradients of `batch` in micro-batches, and leave their sum in the parameters. Return the batch's summed loss and its sums.

    `micro_batch_size` is the largest number of samples of a micro-batch. The sums are those that `Objective.sums` returns, by name. `seed` is
    that of the training.
    """
    lanes, num_parts = state.lanes, batch.num_parts(micro_batch_size)

    def lane_gradients(lane: int) -> Sums:
        """Add the gradients of lane number `lane` of this process to those of the parameters. Return its share of the loss, and its sums."""
        for number, part in enumerate(batch.parts(micro_batch_size, lane)):
            reseed(state.device, seed, *lanes.purpose(lane), state.step, number)
            with lanes.syncing(lane, is_last_part=number == num_parts - 1):
                step.add_micro_batch(part, first=number == 0)
        return step.lane_sums(last=lane == lanes.share.lanes - 1)

    return lanes.summed(lane_gradients)
