"""Performs one optimizer update on one batch. The gradients are accumulated over micro-batches, which are halved if memory runs out.

With `train.lanes: 1`, the default, a lane is the whole batch of this process: see train/group/lanes.py.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from pipeline.core.refusal import Refusal
from pipeline.core.seeding import reseed
from pipeline.inference.batch import Batch
from pipeline.inference.precision import autocast
from pipeline.inference.torch_errors import is_out_of_memory
from pipeline.train.engine.metrics import LOSS, NORM, SKIPPED
from pipeline.train.engine.objective import Objective
from pipeline.train.engine.state import Progress, TrainState
from pipeline.train.group.lanes import Sums

Result = TypeVar("Result")


def retry(attempt: Callable[[int], Result], state: TrainState, progress: Progress, *, largest: int, whole: bool) -> Result:
    """Call `attempt(micro_batch_size)`, halving the size after each OOM until the call succeeds. Return its result.

    Before each retry, the gradients are dropped and the BatchNorm statistics restored, because the failed attempt left them incomplete.
    `largest` is the number of samples of a lane, which limits the micro-batch size. `whole` is True if the batch must not be split. Raises
    Refusal after an OOM if `whole` is True or the micro-batch size is already 1. If several processes train together, this process ends
    instead, and all of them are started again.
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
        size = smaller(state, progress, largest)
        state.lanes.begin_again(state.step + 1, size)
        make_room(state)
        progress.change_micro_batch(state.step + 1, size)
        print(
            f"train: out of memory at step {state.step + 1}: using micro-batches of {size} from this step on; "
            f"to start with this size, write `train.micro_batch_size: {size}` in params.yaml",
            flush=True,
        )


def make_room(state: TrainState) -> None:
    """Drop the gradients, restore the BatchNorm statistics to those before the step, and release cached device memory."""
    state.drop_gradients()
    state.buffers.put_back()
    gc.collect()
    if state.device.type == "cuda":
        torch.cuda.empty_cache()


def smaller(state: TrainState, progress: Progress, largest: int) -> int:
    """Return half the micro-batch size. Raises Refusal if the size is already 1."""
    size = min(progress.micro_batch_size, largest) // 2
    if not size:
        raise Refusal(
            f"train.micro_batch_size: out of memory at step {state.step + 1} with one sample: choose a smaller model or image, "
            "set `train.activation_checkpointing: true`, or free memory that other processes use"
        )
    return size


Forward = Callable[[Tensor], Tensor]
"""The model, perhaps compiled. It maps the inputs of a batch to outputs."""


class WholeBatch(Protocol):
    """The batch of one step, before it is divided into lanes, and each lane into micro-batches.

    `num_targets` counts the targets of the whole batch, over all processes. Each lane has `lane_size` samples. `parts(max_size, lane)`
    yields the micro-batches of lane number `lane` of this process, each of at most `max_size` samples. `num_parts(max_size)` is the number
    of these micro-batches. It is the same for all lanes.
    """

    @property
    def num_targets(self) -> int: ...
    @property
    def lane_size(self) -> int: ...
    def num_parts(self, max_size: int) -> int: ...
    def parts(self, max_size: int, lane: int = 0) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class StepSettings:
    """The settings of one update."""

    seed: int
    learning_rate: float
    clip_norm: float | None
    measures_norm: bool = True
    """False if neither a report follows this step, nor clipping needs the gradient norm."""
    whole: bool = False
    """True if the batch must not be split: with CUDA graphs, each micro-batch would overwrite the gradients of the previous micro-batch."""


def update(
    state: TrainState, batch: WholeBatch, progress: Progress, step_settings: StepSettings, *, objective: Objective, forward: Forward
) -> None:
    """Train on `batch`: advance `state` by one step, and add the metrics of this step to `progress`.

    `forward` is the model, perhaps compiled. After an OOM in the forward or backward pass, the gradients are computed again with smaller
    micro-batches. An OOM in the optimizer step is not retried. Raises Refusal if a single sample does not fit in memory. If `train.compile`
    is "graphs", the micro-batch size cannot change, so any OOM in these passes raises Refusal.
    """
    state.buffers.keep()
    attempt = partial(accumulate_gradients, state, batch, step_settings=step_settings, objective=objective, forward=forward)
    loss, sums = retry(attempt, state, progress, largest=batch.lane_size, whole=step_settings.whole)
    norm, skipped = optimizer_step(state, loss, step_settings)
    if skipped is not None:
        state.buffers.put_back_where(skipped)
    if state.ema:
        state.ema.update(state.step)
    assert sums.keys().isdisjoint((LOSS, NORM, SKIPPED))
    progress.window.add(batch.num_targets, {LOSS: loss, NORM: norm, SKIPPED: skipped, **sums})
    state.step += 1


def accumulate_gradients(
    state: TrainState,
    batch: WholeBatch,
    micro_batch_size: int,
    *,
    step_settings: StepSettings,
    objective: Objective,
    forward: Forward,
) -> Sums:
    """Compute the gradients of `batch` in micro-batches, and leave their sum in the parameters. Return the batch's summed loss and its sums.

    `micro_batch_size` is the largest number of samples of a micro-batch. The sums are those that `Objective.sums` returns, by name. The
    gradient of each micro-batch's summed loss is divided by the number of targets of the whole batch. Micro-batches of unequal size thus
    get the correct weights.
    """
    state.drop_gradients()
    lanes, last = state.lanes, batch.num_parts(micro_batch_size) - 1

    def lane_gradients(lane: int) -> Sums:
        """Add the gradients of lane number `lane` of this process to those of the parameters. Return its share of the loss, and its sums."""
        losses: list[Tensor] = []
        sums: dict[str, list[Tensor]] = {}
        for number, part in enumerate(batch.parts(micro_batch_size, lane)):
            reseed(state.device, step_settings.seed, *lanes.purpose(lane), state.step, number)
            with lanes.syncing(lane, is_last_part=number == last):
                with autocast(state.precision, state.device):
                    outputs = forward(part.inputs)
                assert part.targets is not None
                loss = objective.training_loss(outputs, part.targets)
                # the gradient of the mean over the batch, without an operation that divides the sum
                share = constant(1 / batch.num_targets, loss.dtype, loss.device)
                torch.autograd.backward(state.scaler.scale(loss), share)
            losses.append(loss.detach())
            for name, value in objective.sums(outputs.detach(), part.targets).items():
                sums.setdefault(name, []).append(value)
        return total(losses), {name: total(values) for name, values in sums.items()}

    return lanes.summed(lane_gradients)


def total(parts: list[Tensor]) -> Tensor:
    """Return the sum of the scalars `parts`, on the device. It is computed in float64. If there is only one part, that part is returned
    unchanged.
    """
    return parts[0] if len(parts) == 1 else torch.stack(parts).double().sum()


@lru_cache(maxsize=8)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a scalar on the device. It is made once, because making it takes an operation."""
    return torch.full((), value, dtype=dtype, device=device)


def optimizer_step(state: TrainState, loss: Tensor, step_settings: StepSettings) -> tuple[Tensor | None, Tensor | None]:
    """Apply the accumulated gradients. Return two scalars on the device: the gradient norm before clipping, and the flag of `apply_gradients`.

    The norm is None if it is not measured.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = step_settings.learning_rate * group["lr_scale"]
    # unscale first: the norm must be that of the true gradients
    state.scaler.unscale_(state.optimizer)
    norm = clip_gradients(state, step_settings.clip_norm) if step_settings.measures_norm else None
    return norm, apply_gradients(state, loss, norm if step_settings.clip_norm is not None else None)


def clip_gradients(state: TrainState, max_norm: float | None) -> Tensor:
    """Clip the gradients to the norm `max_norm`, unless it is None. Return the gradient norm before clipping."""
    parameters = [parameter for parameter in state.parameters if parameter.grad is not None]
    norm = state.lanes.norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def apply_gradients(state: TrainState, loss: Tensor, norm: Tensor | None) -> Tensor | None:
    """Let the optimizer apply the gradients of its parameters, given the loss and the norm by which they were clipped, or None.

    With fp16, the gradient scaler skips the update if a gradient overflowed, that is, if it is not finite. With `train.on_nonfinite: skip`,
    the update is skipped if the loss, the norm or a gradient is not finite. Returns a flag on the device: 1.0 if the step was skipped, else
    0.0; or None if no step is ever skipped.
    """
    optimizer, scaler = state.optimizer, state.scaler
    if scaler.is_enabled():
        scaler.step(optimizer)
        # the overflow flags have no public accessor; comparing the scale before and after would synchronise with the device
        found = scaler._found_inf_per_device(optimizer)
        scaler.update()
        (flag,) = found.values()  # the parameters are on one device
        return cast("Tensor", flag)
    if not state.skip_nonfinite:
        optimizer.step()
        return None
    # a gradient that is not finite makes the norm not finite
    gradients = [parameter.grad for parameter in state.parameters if parameter.grad is not None] if norm is None else [norm]
    bad = nonfinite([loss, *gradients])
    # fused optimizers change nothing if this flag is 1, so skipping needs no host synchronisation
    optimizer.found_inf = bad  # type: ignore[attr-defined]
    optimizer.step()
    return bad


def nonfinite(tensors: list[Tensor]) -> Tensor:
    """Return a scalar on the device: 1.0 if a value of `tensors` is not finite, else 0.0."""
    found = torch.zeros((), device=tensors[0].device)
    for dtype in {tensor.dtype: None for tensor in tensors}:
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        if dtype == torch.bfloat16:  # the kernel has no form for it
            same = [torch.nn.utils.get_total_norm(same).float()]
        # the kernel of torch's gradient scaler: one operation for all tensors, which it multiplies by 1 here
        torch._amp_foreach_non_finite_check_and_unscale_(same, found, constant(1.0, found.dtype, found.device))
    return found
