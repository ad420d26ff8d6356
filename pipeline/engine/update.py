"""One optimizer update on one batch, with gradients accumulated over micro-batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pipeline.engine import oom, precision
from pipeline.engine.state import Progress, TrainState
from pipeline.seeding import reseed

Forward = Callable[[Tensor], Tensor]


class Batch(Protocol):
    """A batch that can be split into micro-batches (inputs, targets) of at most `most` samples.

    Targets are class indices (...) or class probabilities (..., classes). `num_targets` counts those of the whole batch.
    """

    @property
    def num_targets(self) -> int: ...
    def parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class StepSettings:
    """Settings of one update; with `skip_nonfinite` a non-finite loss or gradient leaves weights and optimizer unchanged."""

    seed: int
    learning_rate: float
    label_smoothing: float
    clip_norm: float | None
    skip_nonfinite: bool
    report: bool = True
    """True where a report follows, which needs the gradient norm; otherwise the norm is computed only for clipping and skipping."""
    whole: bool = False
    """True where the batch cannot be split: a CUDA graph overwrites the gradients of the previous micro-batch."""


def update(state: TrainState, batch: Batch, progress: Progress, step_settings: StepSettings, *, forward: Forward) -> None:
    """Advance `state` by one step and add its metrics to the window.

    After an OOM the gradients are accumulated again in smaller micro-batches. Nothing is retried once the optimizer has begun.
    Raises Refusal where no micro-batch fits.
    """
    state.buffers.keep()
    attempt = partial(accumulate_gradients, state, batch, step_settings=step_settings, forward=forward)
    loss, correct = oom.in_parts_that_fit(attempt, state, progress, whole=step_settings.whole)
    norm, skipped = optimizer_step(state, loss, step_settings)
    if skipped is not None:
        state.buffers.put_back_where(skipped)
    if state.average:
        state.average.update(state.step, skipped)
    progress.window.add(batch.num_targets, loss=loss, correct=correct, norm=norm, skipped=skipped)
    state.step += 1


def accumulate_gradients(
    state: TrainState, batch: Batch, micro_batch_size: int, *, step_settings: StepSettings, forward: Forward
) -> tuple[Tensor, Tensor]:
    """Accumulate the batch's gradients on the parameters, and return its mean loss and its number of correct predictions.

    Each micro-batch's summed loss is divided by the number of targets of the whole batch, so unequal micro-batches are weighted correctly.
    """
    state.drop_gradients()
    shares, rights = [], []
    for number, (inputs, targets) in enumerate(batch.parts(micro_batch_size)):
        reseed(state.device, step_settings.seed, "step", state.step, number)
        with precision.autocast(state.used, state.device):
            logits = forward(inputs)
        share = summed_loss(logits, targets, step_settings.label_smoothing) / batch.num_targets
        torch.autograd.backward(state.scaler.scale(share))
        shares.append(share.detach())
        rights.append((logits.detach().argmax(-1) == likeliest(targets)).sum())
    return total(shares), total(rights)


def total(parts: list[Tensor]) -> Tensor:
    """Return the sum on the device, in float64 where there are several parts."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).double().sum()


def likeliest(targets: Tensor) -> Tensor:
    """Return the class indices (...): the argmax of class probabilities (..., classes), or the targets where they are indices."""
    return targets.argmax(-1) if targets.is_floating_point() else targets


def summed_loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the summed cross-entropy, in float32 at least.

    Logits are (..., classes), targets class indices (...) or class probabilities (..., classes).
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()
    return cross_entropy(logits.flatten(0, -2), targets, reduction="sum", label_smoothing=label_smoothing)


def optimizer_step(state: TrainState, loss: Tensor, step_settings: StepSettings) -> tuple[Tensor | None, Tensor | None]:
    """Apply the accumulated gradients; return their norm before clipping, and a flag on the device: 1.0 where the step was skipped.

    The norm is None where it is not measured, the flag where steps are applied unconditionally.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = step_settings.learning_rate * group["lr_scale"]
    # unscale first: the norm must be that of the true gradients
    state.scaler.unscale_(state.optimizer)
    wanted = step_settings.report or step_settings.skip_nonfinite or step_settings.clip_norm is not None
    norm = measured(state, step_settings.clip_norm) if wanted else None
    if state.scaler.is_enabled():
        return norm, scaled_step(state)
    if norm is None or not step_settings.skip_nonfinite:
        state.optimizer.step()
        return norm, None
    # fused optimizers change nothing where this flag is 1, so skipping needs no host synchronisation
    bad = (~torch.isfinite(norm + loss)).float()
    state.optimizer.found_inf = bad  # type: ignore[attr-defined]
    state.optimizer.step()
    return norm, bad.double()


def measured(state: TrainState, most: float | None) -> Tensor:
    """Return the gradient norm before clipping, and clip the gradients to `most` where it is not None."""
    parameters = [parameter for parameter in state.parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if most is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def scaled_step(state: TrainState) -> Tensor:
    """Step through the gradient scaler; return 1.0 on the device where it found an overflow and skipped the step, else 0.0."""
    state.scaler.step(state.optimizer)
    # the overflow flags have no public accessor; comparing the scale before and after would synchronise with the device
    found = state.scaler._found_inf_per_device(state.optimizer)
    state.scaler.update()
    return torch.stack([flag.to(state.device) for flag in found.values()]).amax().double()
