"""What resumes: a training is these objects, and everything else is a function of the step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.engine import optimizers, precision
from pipeline.engine.average import Average
from pipeline.engine.classifier import Classifier
from pipeline.params.train import OptimizerSettings

Tensors = dict[str, Tensor]
Row = dict[str, float | int]


@dataclass
class TrainState:
    """The trained network, its optimizer, scaler and average, after `step` updates."""

    classifier: Classifier
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average[Classifier] | None
    used: precision.Used
    device: torch.device
    step: int = 0

    @classmethod
    def begin(
        cls, classifier: Classifier, optimizer: OptimizerSettings, *, used: precision.Used, average_decay: float, device: torch.device
    ) -> "TrainState":
        classifier = classifier.to(device)
        average = Average(classifier, average_decay) if average_decay else None
        built = optimizers.build(classifier.parameters(), optimizer)
        return cls(classifier, built, precision.scaler(used, device), average, used, device)

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
class Sums:
    """What was measured since the last report, kept on the device so that no step waits for the host."""

    loss: Tensor
    correct: Tensor
    skipped: Tensor
    targets: int = 0
    steps: int = 0

    @classmethod
    def zero(cls, device: torch.device) -> "Sums":
        loss, correct, skipped = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(3))
        return cls(loss, correct, skipped)

    def add(self, loss: Tensor, correct: Tensor, skipped: Tensor | None, num_targets: int) -> None:
        """One step's mean loss and number of right answers; a step that the scaler skipped counts for neither."""
        if skipped is not None:
            # where, not a product: the loss of a skipped step may be infinite
            loss, correct = (torch.where(skipped > 0, 0.0, value) for value in (loss, correct))
            self.skipped += skipped
        self.loss += loss
        self.correct += correct
        self.targets += num_targets
        self.steps += 1

    def averages(self) -> Row:
        """Read the sums: the one place where the loop waits for the device."""
        loss, correct, skipped = torch.stack((self.loss, self.correct, self.skipped)).tolist()
        row: Row = {"train/skipped_steps": int(skipped)} if skipped else {}
        applied = self.steps - int(skipped)
        if applied:
            row |= {"train/loss": loss / applied, "train/accuracy": correct / (self.targets * applied / self.steps)}
        return row


@dataclass
class Progress:
    """How the training went so far: the history, the best weights, and the sums since the last report."""

    sums: Sums
    rows: list[Row] = field(default_factory=list)
    best: Tensors | None = None
    best_value: float | None = None
    best_step: int | None = None
    stale: int = 0
    """Validations since the best one."""

    def tensors(self) -> Tensors:
        sums = {"loss": self.sums.loss, "correct": self.sums.correct, "skipped": self.sums.skipped}
        return prefixed("sums", sums) | prefixed("best", self.best or {})

    def scalars(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "targets": self.sums.targets,
            "steps": self.sums.steps,
            "best_value": self.best_value,
            "best_step": self.best_step,
            "stale": self.stale,
        }

    def restore(self, tensors: Tensors, scalars: Mapping[str, Any]) -> None:
        for name, value in stripped("sums", tensors).items():
            getattr(self.sums, name).copy_(value)
        self.sums.targets, self.sums.steps = scalars["targets"], scalars["steps"]
        self.rows, self.stale = list(scalars["rows"]), scalars["stale"]
        self.best_value, self.best_step = scalars["best_value"], scalars["best_step"]
        self.best = stripped("best", tensors) or None
