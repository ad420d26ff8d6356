"""One optimizer update over one batch, in micro-batches whose gradients add up to the batch's."""

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
    """How many targets a batch holds, and the same samples in micro-batches (inputs, targets) of any size.

    Targets are classes (...), or shares (..., classes) of them.
    """

    @property
    def num_targets(self) -> int: ...
    def parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class StepSettings:
    """How one update is made; with `skip_nonfinite` one whose loss or gradient is not finite changes nothing."""

    seed: int
    learning_rate: float
    label_smoothing: float
    clip_norm: float | None
    skip_nonfinite: bool
    report: bool = True
    """Whether a report follows, which needs the norm of the gradient; without one it is computed to clip and to skip only."""
    whole: bool = False
    """Whether the batch cannot be cut: a CUDA graph overwrites the gradients of the micro-batch before."""


def update(state: TrainState, batch: Batch, progress: Progress, step_settings: StepSettings, *, forward: Forward) -> None:
    """Advance `state` by one step and add what was measured to the window.

    When memory runs out the gradients are gathered again in smaller micro-batches; what is done once the optimizer has begun is
    never repeated. Raises Refusal when no micro-batch fits.
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
    """Leave the batch's gradients on the parameters; its mean loss and its number of right answers.

    The loss is divided once, by the number of targets of the whole batch, so ragged micro-batches weigh what they hold.
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
    """On the device, in float64 where there is something to add."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).double().sum()


def likeliest(targets: Tensor) -> Tensor:
    """Of targets that are shares (..., classes) the class with the largest; of classes (...) these."""
    return targets.argmax(-1) if targets.is_floating_point() else targets


def summed_loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy of logits (..., classes) against targets (...) or shares (..., classes) of them, summed, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()
    return cross_entropy(logits.flatten(0, -2), targets, reduction="sum", label_smoothing=label_smoothing)


def optimizer_step(state: TrainState, loss: Tensor, step_settings: StepSettings) -> tuple[Tensor | None, Tensor | None]:
    """Apply the gradients that have been gathered: their norm before clipping, and 1.0 on the device where they changed nothing.

    The first is None where nobody measures it, the second where every step is applied, whatever it holds.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = step_settings.learning_rate * group["factor"]
    # unscale first: the norm is of the true gradients
    state.scaler.unscale_(state.optimizer)
    wanted = step_settings.report or step_settings.skip_nonfinite or step_settings.clip_norm is not None
    norm = measured(state, step_settings.clip_norm) if wanted else None
    if state.scaler.is_enabled():
        return norm, scaled_step(state)
    if norm is None or not step_settings.skip_nonfinite:
        state.optimizer.step()
        return norm, None
    # fused optimizers leave all as it is where this flag is 1: nobody waits for the device to know
    bad = (~torch.isfinite(norm + loss)).float()
    state.optimizer.found_inf = bad  # type: ignore[attr-defined]
    state.optimizer.step()
    return norm, bad.double()


def measured(state: TrainState, most: float | None) -> Tensor:
    """The norm of the gradient, which is then made `most` long where it is longer and there is a limit."""
    parameters = [parameter for parameter in state.parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if most is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def scaled_step(state: TrainState) -> Tensor:
    """1.0 on the device if the scaler found an overflow, and so skipped this step."""
    state.scaler.step(state.optimizer)
    # the scaler knows what overflowed and says so nowhere in public; reading the scale instead would wait for the device
    found = state.scaler._found_inf_per_device(state.optimizer)
    state.scaler.update()
    return torch.stack([flag.to(state.device) for flag in found.values()]).amax().double()
