"""Computes a step on the device: the gradients of each micro-batch, and the update of the weights. `captured.py` replays it as CUDA graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pipeline.inference.batch import Batch
from pipeline.inference.cuda_graphs import Graphs
from pipeline.inference.precision import autocast
from pipeline.inference.torch_errors import is_out_of_memory
from pipeline.train.engine.metrics import LOSS
from pipeline.train.engine.objective import Objective
from pipeline.train.engine.state import TrainState
from pipeline.train.group.lanes import Sums
from pipeline.train.group.sharding import is_divided

Result = TypeVar("Result")
Forward = Callable[[Tensor], Tensor]
"""The model, perhaps compiled. It maps the inputs of a batch to outputs."""


@dataclass(frozen=True)
class StepSettings:
    """The settings of one update."""

    seed: int
    learning_rate: float
    clip_norm: float | None
    measures_norm: bool
    """False if neither a report follows this step, nor clipping needs the gradient norm."""
    may_split: bool
    """False if a lane must stay one micro-batch: with the compiler's CUDA graphs, each micro-batch would overwrite the gradients of the one before."""


class Numbers:
    """The numbers that differ from step to step, where the operations of a step read them.

    On a GPU they are float32 scalars in its memory, which are set before the first operation of a step. A CUDA graph would otherwise repeat
    the numbers of the step in which it was recorded. On a CPU they are Python's numbers.
    """

    def __init__(self, state: TrainState, *, on_gpu: bool) -> None:
        self.groups, self.device = state.optimizer.param_groups, state.device
        self.scalars = [torch.zeros((), device=self.device) for _ in range(2 + len(self.groups))] if on_gpu else []
        # fused optimizers read the learning rate from the GPU, but refuse parameters that are shards beside a rate that is a whole tensor
        self.rates_on_gpu = on_gpu and all(group.get("fused", True) and not is_divided(group["params"][0]) for group in self.groups)
        self.share: Tensor | float = 0.0
        """The weight of a target in the loss: 1 by the number of targets of the whole batch."""
        self.ema_weight: Tensor | float = 0.0
        """The weight of the present values in the EMA."""

    def set(self, *, share: float, ema_weight: float, learning_rate: float) -> None:
        """Set the numbers of a step, with the learning rate of each parameter group of the optimizer."""
        rates: list[Any] = [learning_rate * group["lr_scale"] for group in self.groups]
        self.share, self.ema_weight = share, ema_weight
        if self.scalars:
            # numbers that are arguments of a kernel need no copy from the host
            torch._foreach_zero_(self.scalars)
            torch._foreach_add_(self.scalars, [share, ema_weight, *rates])
            self.share, self.ema_weight, *on_gpu = self.scalars
            rates = on_gpu if self.rates_on_gpu else rates
        for group, rate in zip(self.groups, rates, strict=True):
            group["lr"] = rate

    def share_as(self, dtype: torch.dtype) -> Tensor:
        """Return `share` as a scalar on the device."""
        return self.share.to(dtype) if isinstance(self.share, Tensor) else constant(self.share, dtype, self.device)


@lru_cache(maxsize=8)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a scalar on the device. It is made once, because making it takes an operation."""
    return torch.full((), value, dtype=dtype, device=device)


class Step:
    """Computes the gradients and the update of a step, one operation after the other."""

    def __init__(self, state: TrainState, objective: Objective, forward: Forward) -> None:
        self.state, self.objective, self.forward = state, objective, forward
        self.graphs: Graphs | None = None
        self.numbers = Numbers(state, on_gpu=state.device.type == "cuda")
        self.has_begun = False
        """True if the statistics of BatchNorm may have changed since the step began, and `TrainState.buffers` has those of before."""
        self.begun_finite: list[Tensor] = []
        """For each micro-batch of the first step of the training, before any update, if the outputs and the loss are finite (2,)."""
        self.parts: list[dict[str, Tensor]] = []
        """The loss and the sums of each micro-batch of a lane so far, by name."""

    def begin(self, num_targets: int, learning_rate: float) -> None:
        """Begin the step after `state.step` completed ones. Its batch has `num_targets` targets, over all processes."""
        self.has_begun, ema = False, self.state.ema
        self.numbers.set(share=1 / num_targets, ema_weight=ema.weight(self.state.step) if ema else 0.0, learning_rate=learning_rate)

    def add_micro_batch(self, part: Batch, *, first: bool) -> None:
        """Add the gradients of `part` to those of the parameters. If it is the `first` of a lane, these are dropped before.

        The gradient of the summed loss is divided by the number of targets of the whole batch. Micro-batches of unequal size thus get the
        correct weights.
        """
        assert part.targets is not None
        self.has_begun = True
        if first:
            self.parts = []
        self.parts.append(self.differentiated(part.inputs, part.targets, first=first))

    def differentiated(self, inputs: Tensor, targets: Tensor, *, first: bool) -> dict[str, Tensor]:
        """Compute the gradients of a micro-batch. Return its loss and the sums that `Objective.sums` returns, by name."""
        state = self.state
        if first:
            state.buffers.keep()
            state.drop_gradients()
        with autocast(state.precision, state.device):
            outputs = self.forward(inputs)
        loss = self.objective.training_loss(outputs, targets)
        if state.step == 0:
            self.begun_finite.append(torch.stack([outputs.detach().isfinite().all(), loss.detach().isfinite()]))
        # the gradient of the mean over the batch, without an operation that divides the sum
        torch.autograd.backward(state.scaler.scale(loss), self.numbers.share_as(loss.dtype))
        return {LOSS: loss.detach(), **self.objective.sums(outputs.detach(), targets)}

    def lane_sums(self, *, last: bool) -> Sums:  # noqa: ARG002  # captured steps read `last`
        """Return the loss of a lane and its sums, after its last micro-batch. `last` is True for the last lane of this process."""
        totals = {name: total([part[name] for part in self.parts]) for name in self.parts[0]}
        return totals.pop(LOSS), totals

    def update(self, loss: Tensor | None, settings: StepSettings) -> tuple[Tensor | None, Tensor | None]:
        """Apply the gradients to the weights, and update the EMA. `loss` is that of the whole batch; it may be None if no loss is checked (see `skips_nonfinite`).

        Return two scalars on the device: the gradient norm before clipping, or None if it is not measured, and the flag of
        `apply_gradients`.
        """
        state = self.state
        # unscale first: the norm must be that of the true gradients
        state.scaler.unscale_(state.optimizer)
        norm = clip_gradients(state, settings.clip_norm) if settings.measures_norm else None
        skipped = apply_gradients(state, loss, norm if settings.clip_norm is not None else None)
        if skipped is not None:
            state.buffers.put_back_where(skipped)
        if state.ema:
            state.ema.update(self.numbers.ema_weight)
        return norm, skipped

    def release(self) -> bool:
        """Release the memory that the step takes beyond that of its operations. Return True if there was any."""
        return False

    def with_memory(self, function: Callable[[], Result]) -> Result:
        """Return `function()`. If memory runs out that `release` gives back, it is called again."""
        try:
            return function()
        except RuntimeError as error:
            if not is_out_of_memory(error) or not self.release():
                raise
        return function()


def total(parts: list[Tensor]) -> Tensor:
    """Return the sum of the scalars `parts`, on the device. It is computed in float64, in order. If there is only one part, that part is
    returned unchanged.
    """
    return parts[0] if len(parts) == 1 else reduce(torch.add, (part.double() for part in parts))


def clip_gradients(state: TrainState, max_norm: float | None) -> Tensor:
    """Clip the gradients to the norm `max_norm`, unless it is None. Return the gradient norm before clipping."""
    parameters = [parameter for parameter in state.parameters if parameter.grad is not None]
    norm = state.lanes.norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def apply_gradients(state: TrainState, loss: Tensor | None, norm: Tensor | None) -> Tensor | None:
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
    if not state.skips_nonfinite:
        optimizer.step()
        return None
    assert loss is not None
    # a gradient that is not finite makes the norm not finite
    gradients = [parameter.grad for parameter in state.parameters if parameter.grad is not None] if norm is None else [norm]
    bad = nonfinite([loss, *gradients])
    # fused optimizers change nothing if this flag is 1, so skipping needs no host synchronisation
    optimizer.found_inf = bad  # type: ignore[attr-defined]
    optimizer.step()
    return bad


def nonfinite(tensors: list[Tensor]) -> Tensor:
    """Return a scalar on the device: 1.0 if a value of `tensors` is not finite, else 0.0."""
    found, one = torch.arange(2, dtype=torch.float32, device=tensors[0].device).unbind()  # 0 and 1 by one operation
    for dtype in {tensor.dtype: None for tensor in tensors}:
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        if dtype == torch.bfloat16:  # the kernel has no form for it
            same = [torch.nn.utils.get_total_norm(same).float()]
        # the kernel of torch's gradient scaler: one operation for all tensors, which it multiplies by 1 here
        torch._amp_foreach_non_finite_check_and_unscale_(same, found, one)
    return found
