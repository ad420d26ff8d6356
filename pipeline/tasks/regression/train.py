"""Loss and metrics of a regression."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pipeline.core.spec import Spec
from pipeline.inference import scores
from pipeline.inference.params import LossSettings
from pipeline.tasks.regression.targets import NumberTargets
from pipeline.train.engine import objective


class Objective(objective.Objective):
    """The loss that `loss.name` chooses, and RMSE, MAE and R2. The loss to report is the mean squared error.

    Outputs are standardised numbers (n, columns); targets are numbers (n, columns) in their own units.
    """

    def __init__(self, spec: Spec, loss: LossSettings, weights: Tensor | None = None) -> None:
        super().__init__(spec, loss, weights)
        assert isinstance(spec.targets, NumberTargets)
        self.std = spec.targets.std
        self.scale = torch.tensor([spec.targets.mean, spec.targets.std], dtype=torch.float64)
        """The mean and the standard deviation of each column (2, columns)."""

    def compared(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets (n, columns), both standardised, in float32 at least."""
        objective.refuse_other_shape(outputs, targets)
        if self.scale.device != targets.device:
            self.scale = self.scale.to(targets.device)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return outputs, ((targets - self.scale[0]) / self.scale[1]).to(outputs.dtype)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared errors of all standardised numbers, summed."""
        outputs, targets = self.compared(outputs, targets)
        return (outputs - targets).square().sum()

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return `scores.NumberSums` of each column, a scalar for each of its fields, such as `squared 0`."""
        outputs, targets = (numbers.double() for numbers in self.compared(outputs, targets))
        errors = outputs - targets
        columns = zip(scores.NumberSums._fields, (errors.square(), errors.abs(), targets, targets.square()), strict=True)
        return {f"{name} {column}": total for name, numbers in columns for column, total in enumerate(numbers.sum(dim=0).unbind())}

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return RMSE and MAE in the units of the targets, and R2. Of several columns, each is the mean over the columns."""
        every = [scores.NumberSums(*(sums[f"{name} {column}"] for name in scores.NumberSums._fields)) for column in range(len(self.std))]
        return scores.of_numbers(every, num_targets / len(self.std), self.std)
