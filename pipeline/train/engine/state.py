"""The state that a checkpoint stores, with the EMA (exponential moving average) of the weights. Everything else follows from the step number."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.inference import networks
from pipeline.inference.networks import Model
from pipeline.inference.precision import ChosenPrecision, scaler
from pipeline.inference.tensor_file import Tensors
from pipeline.train.engine import optimizers
from pipeline.train.engine.metrics import Row, StepMetrics
from pipeline.train.group.lanes import ONE_LANE, BufferSnapshot, OneLane
from pipeline.train.group.sharding import divided_like, local
from pipeline.train.optimizer_params import OptimizerSettings


class EMA:
    """A copy of a module whose floating-point parameters and buffers are exponential moving averages of the originals.

    Integer buffers are copied. The decay is (1 + step) / (10 + step), but at most `decay`. It is low at first, so that the
    initial weights do not dominate a short training.
    """

    def __init__(self, module: Model, decay: float) -> None:
        self.module = copy.deepcopy(module)
        self.module.requires_grad_(False).eval()
        for layer in self.module.modules():
            if isinstance(layer, nn.RNNBase):
                layer.flatten_parameters()  # cuDNN wants the weights of a layer in one block of memory, and `deepcopy` separates them
        self.decay = decay
        self.follow(module)

    def follow(self, module: Model) -> None:
        """Average the tensors that `module` has now. Call this again after the tensors of `module` and of the copy were replaced by shards."""
        pairs = [
            (trailing, leading)
            for trailing, leading in zip(tensors(self.module), tensors(module), strict=True)
            if leading.requires_grad or not isinstance(leading, nn.Parameter)  # the average of a frozen parameter is this parameter
        ]
        self.trailing = [local(trailing) for trailing, _ in pairs if trailing.is_floating_point()]
        self.leading = [local(leading) for _, leading in pairs if leading.is_floating_point()]
        self.counters = [trailing for trailing, _ in pairs if not trailing.is_floating_point()]
        self.counted = [leading for _, leading in pairs if not leading.is_floating_point()]

    def weight(self, step: int) -> float:
        """Return the weight of the present values in the averages after step `step`, which is counted from 0."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, weight: Tensor | float) -> None:
        """Update the averages. `weight` is a scalar on a GPU, or a number. A step that was skipped counts as one that changed no weight."""
        if isinstance(weight, Tensor):  # `lerp` takes the weight of all tensors from the host only
            changes = torch._foreach_sub(self.leading, self.trailing)
            torch._foreach_mul_(changes, weight)
            torch._foreach_add_(self.trailing, changes)
        else:
            torch._foreach_lerp_(self.trailing, self.leading, weight)
        if self.counters:
            torch._foreach_copy_(self.counters, self.counted)


def tensors(module: nn.Module) -> list[Tensor]:
    """Return all parameters and buffers of `module`."""
    return [*module.parameters(), *module.buffers()]


MicroBatchChange = dict[str, int]
"""The keys are `step` and `micro_batch_size`, the size that is used from this step on."""


@dataclass
class TrainState:
    """The model, its optimizer, gradient scaler and EMA after `step` updates. `ema` is None if no EMA is kept."""

    model: Model
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: EMA | None
    precision: ChosenPrecision
    device: torch.device
    buffers: BufferSnapshot
    lanes: OneLane
    skip_nonfinite: bool
    """True if a step with a non-finite loss or gradient leaves the weights and the optimizer unchanged. Has no effect with fp16."""
    step: int = 0

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters in the network's order.

        The list is cached, because collecting it at every step would slow down small models noticeably.
        """
        return list(self.model.parameters())

    @classmethod
    def begin(
        cls,
        model: Model,
        optimizer: OptimizerSettings,
        *,
        precision: ChosenPrecision,
        ema_decay: float,
        device: torch.device,
        skip_nonfinite: bool = False,
        lanes: OneLane = ONE_LANE,
    ) -> "TrainState":
        """Return the state before the first step: move the model to `device`, and build its optimizer, gradient scaler and EMA.

        If `ema_decay` is 0, no EMA is built. Raises Refusal if `lanes` cannot divide the weights.
        """
        ema = EMA(model, ema_decay) if ema_decay else None
        lanes.place(model, device, precision)
        if ema:
            lanes.place(ema.module, device, precision)
            ema.follow(model)
        built, scales = optimizers.build(model.network, optimizer), scaler(precision, device)
        buffers = BufferSnapshot(model.network)
        lanes.begin(model.network, buffers)
        return cls(model, built, scales, ema, precision, device, buffers, lanes, skip_nonfinite)

    @property
    def skips_nonfinite(self) -> bool:
        """True if a step is skipped whose loss or gradients are not finite, without a gradient scaler, which would do it by itself."""
        return self.skip_nonfinite and not self.scaler.is_enabled()

    def drop_gradients(self) -> None:
        """Set all gradients to None. `zero_grad` has the same effect, but takes 0.1 ms longer because of its profiler hook."""
        for parameter in self.parameters:
            parameter.grad = None

    @cached_property
    def trained_names(self) -> frozenset[str]:
        """Return the names of the tensors of the network that the training changes: all but frozen parameters."""
        tensors = self.model.network.state_dict(keep_vars=True)
        return frozenset(name for name, tensor in tensors.items() if tensor.requires_grad or not isinstance(tensor, nn.Parameter))

    @property
    def has_frozen(self) -> bool:
        """True if checkpoints lack tensors of the network, because they are frozen."""
        return len(self.trained_names) < len(self.model.network.state_dict())

    def trained(self, network: nn.Module) -> Tensors:
        """Return the tensors of `network`, the model's or that of the EMA, which the training changes."""
        return {name: tensor for name, tensor in network.state_dict().items() if name in self.trained_names}

    def weights(self) -> Tensors:
        """Return a copy of the current weights without the frozen ones: those of the EMA if there is one, else those of the model.

        All processes call this.
        """
        return self.lanes.copies(self.trained(self.scored.network))

    def with_frozen(self, weights: Tensors) -> Tensors:
        """Return `weights`, which the method `weights` has returned, and the frozen ones, in the order of the network. All processes call this."""
        own = self.model.network.state_dict()
        frozen = self.lanes.copies({name: tensor for name, tensor in own.items() if name not in self.trained_names})
        whole = weights | frozen
        return {name: whole[name] for name in own} if weights else {}

    @property
    def scored(self) -> Model:
        """Return the model that is validated and exported: the EMA if there is one, else the trained model."""
        return self.ema.module if self.ema else self.model

    def tensors(self) -> Tensors:
        """Return every tensor needed to resume, by name. The tensors are not copied. Frozen weights are left out: a resumed training starts
        from the same ones.
        """
        found = prefixed("network", self.trained(self.model.network))
        if self.ema:
            found |= prefixed("average", self.trained(self.ema.module.network))
        for name, parameter in self.model.network.named_parameters():
            kept = self.optimizer.state.get(parameter, {})
            found |= prefixed(f"optimizer/{name}", {key: value for key, value in kept.items() if isinstance(value, Tensor)})
        return found

    def scalars(self) -> dict[str, Any]:
        return {"step": self.step, "scaler": self.scaler.state_dict()}

    def restore(self, tensors: Tensors, scalars: Mapping[str, Any]) -> None:
        """Restore the state from what `tensors()` and `scalars()` returned earlier."""
        self.load(self.model.network, stripped("network", tensors))
        if self.ema:
            self.load(self.ema.module.network, stripped("average", tensors))
        for name, parameter in self.model.network.named_parameters():
            for key, value in stripped(f"optimizer/{name}", tensors).items():
                self.optimizer.state[parameter][key] = like(parameter, value)
        self.scaler.load_state_dict(dict(scalars["scaler"]))
        self.step = int(scalars["step"])

    def load(self, network: nn.Module, tensors: Tensors) -> None:
        """Copy `tensors` into what `trained(network)` returns, or into the shards. Raises RuntimeError if names or shapes differ."""
        own = self.trained(network)
        if tensors.keys() != own.keys():
            raise RuntimeError(networks.differences(tensors, own))
        networks.load(network, {name: divided_like(own[name], value) for name, value in tensors.items()}, strict=False)


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return `value`, a tensor of the optimizer state of `parameter`, on the device of `parameter`.

    If `value` has the shape of `parameter`, the result also has the strides of `parameter`. Fused kernels need this: they do not look at
    strides, but assume that the parameter and its state have the same order in memory.
    """
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(divided_like(parameter, value))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def stripped(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


@dataclass
class Progress:
    """The record of a training so far: micro-batch size, history, best weights, and the step metrics since the last report."""

    micro_batch_size: int
    micro_batch_changes: list[MicroBatchChange] = field(default_factory=list)
    """Changes of the micro-batch size after OOM. Checkpoints and model files have them under the key `switches`."""
    window: StepMetrics = field(default_factory=StepMetrics)
    rows: list[Row] = field(default_factory=list)
    best: Tensors | None = None
    best_value: float | None = None
    best_step: int | None = None
    stale: int = 0
    """Number of validations since the best validation."""
    skipped_last: int = 0
    """Number of steps in a row that were skipped up to the last report."""
    ended_at: int | None = None
    """The step after which a non-finite value ended the training early. In no checkpoint: a resumed training finds it again."""

    @property
    def reported_step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    def change_micro_batch(self, step: int, micro_batch_size: int) -> None:
        """Use another micro-batch size from `step` on, and record the change. An earlier record for the same step is replaced."""
        self.micro_batch_size = micro_batch_size
        self.micro_batch_changes = [change for change in self.micro_batch_changes if change["step"] != step]
        self.micro_batch_changes.append({"step": step, "micro_batch_size": micro_batch_size})

    def tensors(self) -> Tensors:
        return prefixed("window", self.window.tensors()) | prefixed("best", self.best or {})

    def scalars(self) -> dict[str, Any]:
        """Return everything else that is needed to resume. `rows` is not copied: it is the first `num_rows` of a list that may grow."""
        return {
            "micro_batch_size": self.micro_batch_size,
            "switches": list(self.micro_batch_changes),
            "num_targets": self.window.num_targets,
            "rows": self.rows,
            "num_rows": len(self.rows),
            "best_value": self.best_value,
            "best_step": self.best_step,
            "stale": self.stale,
            "skipped_last": self.skipped_last,
        }

    def restore(self, tensors: Tensors, scalars: Mapping[str, Any], device: torch.device) -> None:
        """Restore the progress from what `tensors()` and `scalars()` returned earlier. The step metrics are moved to `device`."""
        self.micro_batch_size, self.micro_batch_changes = scalars["micro_batch_size"], list(scalars["switches"])
        self.window.restore(stripped("window", tensors), scalars["num_targets"], device)
        self.rows, self.stale, self.skipped_last = list(scalars["rows"]), scalars["stale"], scalars["skipped_last"]
        self.best_value, self.best_step = scalars["best_value"], scalars["best_step"]
        self.best = stripped("best", tensors) or None
