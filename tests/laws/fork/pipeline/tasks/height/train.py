"""Mean squared error."""

from collections.abc import Mapping

from torch import Tensor

from pipeline.core.spec import Spec
from pipeline.inference.params import LossSettings


class Objective:
    chance_loss = 1.0

    def __init__(self, spec: Spec, loss: LossSettings, class_weights: Tensor | None) -> None:
        pass

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum()

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"absolute_error": (outputs - targets).abs().sum()}

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        return {"mean_absolute_error": sums["absolute_error"] / num_targets}
