"""Mean squared error."""

from collections.abc import Mapping

from torch import Tensor

from pipeline.batch import Batch
from pipeline.params.loop import LoopSettings
from pipeline.spec import Spec


class Objective:
    chance_loss = 1.0

    def __init__(self, spec: Spec, settings: LoopSettings) -> None:
        pass

    def training_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.loss(outputs, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - batch.targets).square().sum()

    def sums(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"absolute_error": (outputs - batch.targets).abs().sum()}

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        return {"mean_absolute_error": sums["absolute_error"] / num_targets}
