"""One optimizer update over one batch, in micro-batches whose gradients add up to the batch's."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pipeline.engine import precision
from pipeline.engine.state import Sums, TrainState
from pipeline.seeding import reseed

Forward = Callable[[Tensor], Tensor]


class Batch(Protocol):
    """Micro-batches of (inputs, targets), and how many targets they hold together."""

    @property
    def num_targets(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


def update(
    state: TrainState,
    batch: Batch,
    sums: Sums,
    *,
    forward: Forward,
    seed: int,
    learning_rate: float,
    label_smoothing: float,
    clip_norm: float | None,
) -> Tensor | None:
    """Advance `state` by one step and add what was measured to `sums`; the gradient's norm where clipping measured it anyway.

    The loss is divided once, by the number of targets of the whole batch, so ragged micro-batches weigh what they hold.
    """
    # cleared here and not at the end, so that a report can still measure the gradients
    state.optimizer.zero_grad()
    buffers = kept_buffers(state)
    loss, correct = torch.zeros(2, dtype=torch.float64, device=state.device).unbind()
    for number, (inputs, targets) in enumerate(batch):
        reseed(state.device, seed, "step", state.step, number)
        with precision.autocast(state.used, state.device):
            logits = forward(inputs)
        share = summed_loss(logits, targets, label_smoothing) / batch.num_targets
        torch.autograd.backward(state.scaler.scale(share))
        loss += share.detach()
        correct += (logits.detach().argmax(-1) == targets).sum()
    norm = descend(state, learning_rate, clip_norm)
    skipped = undo_if_skipped(state, buffers)
    if state.average:
        state.average.update(state.step, skipped)
    sums.add(loss, correct, skipped, batch.num_targets)
    state.step += 1
    return norm


def summed_loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy of logits (..., classes) against targets (...), summed, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum", label_smoothing=label_smoothing)


def descend(state: TrainState, learning_rate: float, clip_norm: float | None) -> Tensor | None:
    """Apply the gradients that have been gathered; their norm before clipping, where they are clipped."""
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate
    # unscale first: the norm is of the true gradients
    state.scaler.unscale_(state.optimizer)
    norm = None if clip_norm is None else torch.nn.utils.clip_grad_norm_(state.classifier.parameters(), clip_norm)
    state.scaler.step(state.optimizer)
    return norm


def gradient_norm(state: TrainState) -> Tensor:
    """The 2-norm of the gradients that the last update used, where no clipping measured it."""
    gradients = [parameter.grad for parameter in state.classifier.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def kept_buffers(state: TrainState) -> list[Tensor]:
    """BatchNorm's statistics before the step; only a scaler can skip a step, so only then are they kept."""
    if not state.scaler.is_enabled():
        return []
    return [buffer.clone() for buffer in state.classifier.network.buffers()]


def undo_if_skipped(state: TrainState, buffers: list[Tensor]) -> Tensor | None:
    """1.0 on the device if the scaler skipped this step, whose traces in the buffers are then wiped; None without a scaler."""
    if not state.scaler.is_enabled():
        return None
    # the scaler knows what overflowed and says so nowhere in public; reading the scale instead would wait for the device
    found = state.scaler._found_inf_per_device(state.optimizer)
    skipped = torch.stack([flag.to(state.device) for flag in found.values()]).amax()
    for buffer, before in zip(state.classifier.network.buffers(), buffers, strict=True):
        buffer.copy_(torch.where(skipped > 0, before, buffer))
    state.scaler.update()
    return skipped.double()
