"""What resumes: a training is these objects, and everything else is a function of the step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.engine import optimizers, precision
from pipeline.engine.buffer_snapshot import Buffers
from pipeline.engine.classifier import Classifier
from pipeline.engine.ema import Average
from pipeline.engine.step_metrics import Row, StepMetrics
from pipeline.io.tensor_file import Tensors
from pipeline.params.optimizer import OptimizerSettings

Switch = dict[str, int]


@dataclass
class TrainState:
    """The trained network, its optimizer, scaler and average, after `step` updates."""

    classifier: Classifier
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average[Classifier] | None
    used: precision.Used
    device: torch.device
    buffers: Buffers
    step: int = 0

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """In the network's order; to look for them takes as long as some steps' arithmetic."""
        return list(self.classifier.parameters())

    @classmethod
    def begin(
        cls, classifier: Classifier, optimizer: OptimizerSettings, *, used: precision.Used, average_decay: float, device: torch.device
    ) -> "TrainState":
        classifier = classifier.to(device)
        average = Average(classifier, average_decay) if average_decay else None
        built = optimizers.build(classifier, optimizer)
        return cls(classifier, built, precision.scaler(used, device), average, used, device, Buffers(classifier.network))

    def drop_gradients(self) -> None:
        """As `zero_grad` does, which takes 0.1 ms more, for a profiler's sake."""
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def scored(self) -> Classifier:
        """The module that is validated and exported: the averaged one where there is one."""
        return self.average.module if self.average else self.classifier

    def tensors(self) -> Tensors:
        """Every tensor that a resume needs, by name."""
        found = prefixed("network", self.classifier.network.state_dict())
        if self.average:
            found |= prefixed("average", self.average.module.network.state_dict())
        for name, parameter in self.classifier.network.named_parameters():
            kept = self.optimizer.state.get(parameter, {})
            found |= prefixed(f"optimizer/{name}", {key: value for key, value in kept.items() if isinstance(value, Tensor)})
        return found

    def scalars(self) -> dict[str, Any]:
        return {"step": self.step, "scaler": self.scaler.state_dict()}

    def restore(self, tensors: Tensors, scalars: Mapping[str, Any]) -> None:
        """Go on from what `tensors()` and `scalars()` gave."""
        self.classifier.network.load_state_dict(stripped("network", tensors))
        if self.average:
            self.average.module.network.load_state_dict(stripped("average", tensors))
        for name, parameter in self.classifier.network.named_parameters():
            for key, value in stripped(f"optimizer/{name}", tensors).items():
                self.optimizer.state[parameter][key] = like(parameter, value)
        self.scaler.load_state_dict(dict(scalars["scaler"]))
        self.step = int(scalars["step"])


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """A copy with the parameter's memory order, which fused kernels read instead of strides."""
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def stripped(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


@dataclass
class Progress:
    """How the training went so far: the micro-batch in use, the history, the best weights, and the window since the last report."""

    micro_batch_size: int
    switches: list[Switch] = field(default_factory=list)
    """Where memory ran out: from this step on the micro-batch was this one."""
    window: StepMetrics = field(default_factory=StepMetrics)
    rows: list[Row] = field(default_factory=list)
    best: Tensors | None = None
    best_value: float | None = None
    best_step: int | None = None
    stale: int = 0
    """Validations since the best one."""

    @property
    def reported_step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    def switch(self, step: int, micro_batch_size: int) -> None:
        """Use another micro-batch from this step on; the last word on a step counts."""
        self.micro_batch_size = micro_batch_size
        self.switches = [switch for switch in self.switches if switch["step"] != step]
        self.switches.append({"step": step, "micro_batch_size": micro_batch_size})

    def tensors(self) -> Tensors:
        return prefixed("window", self.window.tensors()) | prefixed("best", self.best or {})

    def scalars(self) -> dict[str, Any]:
        return {
            "micro_batch_size": self.micro_batch_size,
            "switches": list(self.switches),
            "num_targets": self.window.num_targets,
            "rows": list(self.rows),
            "best_value": self.best_value,
            "best_step": self.best_step,
            "stale": self.stale,
        }

    def restore(self, tensors: Tensors, scalars: Mapping[str, Any], device: torch.device) -> None:
        """Go on from what `tensors()` and `scalars()` gave."""
        self.micro_batch_size, self.switches = scalars["micro_batch_size"], list(scalars["switches"])
        self.window.restore(stripped("window", tensors), scalars["num_targets"], device)
        self.rows, self.stale = list(scalars["rows"]), scalars["stale"]
        self.best_value, self.best_step = scalars["best_value"], scalars["best_step"]
        self.best = stripped("best", tensors) or None
