"""Metrics of the steps since the last report. They stay on the device, so that steps need no host synchronisation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.train.engine.objective import Objective

Row = dict[str, float | int]
LOSS, NORM, SKIPPED = "loss", "norm", "skipped"


@dataclass(frozen=True)
class StepValues:
    """Holds the metrics of the steps since the last report of the training, copied to the host. Each sequence has one value per step."""

    loss: Sequence[float]
    """The mean training loss."""
    norm: Sequence[float]
    """The gradient norm; 0 if it was not measured."""
    skipped: Sequence[float]
    """1.0 if the step was skipped, else 0.0."""
    sums: Mapping[str, Sequence[float]]
    """The sums that `Objective.sums` returns, by name."""

    @property
    def steps(self) -> int:
        return len(self.loss)

    @property
    def num_skipped(self) -> int:
        return int(sum(self.skipped))

    @property
    def first_bad(self) -> int | None:
        """Return the index of the first step with a non-finite loss or gradient norm, or None if there is no such step."""
        return next((index for index in range(self.steps) if not math.isfinite(self.loss[index] + self.norm[index])), None)

    def averages(self, num_targets: int, objective: Objective) -> Row:
        """Return a row of the report: the mean loss, the task's metrics, the last gradient norm and the number of skipped steps, by name.

        `num_targets` is the number of targets in all steps together. The loss and the metrics are averaged over the steps that were not
        skipped. Their number of targets is estimated from `num_targets`, as if all steps had equally many. The row has no loss and no
        metrics if every step was skipped, no gradient norm if it is not finite, and no number of skipped steps if it is 0.
        """
        row: Row = {"train/skipped_steps": self.num_skipped} if self.num_skipped else {}
        applied = [index for index in range(self.steps) if not self.skipped[index]]
        if applied:
            row["train/objective"] = sum(self.loss[index] for index in applied) / len(applied)
            applied_targets = num_targets * len(applied) / self.steps
            sums = {name: sum(values[index] for index in applied) for name, values in self.sums.items()}
            sums[LOSS] = row["train/objective"] * applied_targets
            row |= {f"train/{name}": value for name, value in objective.averages(sums, applied_targets).items()}
        if math.isfinite(self.norm[-1]):
            row["train/gradient_norm"] = self.norm[-1]
        return row


@dataclass
class StepMetrics:
    """Collects the metrics of each step on the device: the loss, the gradient norm, and 1.0 or 0.0 for whether the step was skipped. It
    also collects the sums that `Objective.sums` returns, from which the task's metrics are computed.
    """

    values: dict[str, list[Tensor | None]] = field(default_factory=dict)
    num_targets: int = 0

    def add(self, num_targets: int, values: Mapping[str, Tensor | None]) -> None:
        """Add the metrics of one step. `values` maps names to scalars, and `num_targets` is the number of targets in the step.

        All calls must use the same names. A value of None counts as 0, and the device has nothing to compute for it.
        """
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)
        self.num_targets += num_targets

    def read(self) -> StepValues:
        """Copy the metrics of all steps to the host.

        This makes the host wait for the device; `add` does not. At least one step must have been added.
        """
        tensors = self.tensors()
        values = dict(zip(tensors, torch.stack([tensor.double() for tensor in tensors.values()]).tolist(), strict=True))
        return StepValues(values.pop(LOSS), values.pop(NORM), values.pop(SKIPPED), values)

    def tensors(self) -> dict[str, Tensor]:
        """Return one tensor (steps,) per metric, by name. The dict is empty if no step was added."""
        known = [value for values in self.values.values() for value in values if value is not None]
        return {name: stacked(values, known[0].device) for name, values in self.values.items()} if known else {}

    def restore(self, tensors: dict[str, Tensor], num_targets: int, device: torch.device) -> None:
        """Restore the metrics from `tensors`, which the method `tensors` returned earlier, and move them to `device`.

        `num_targets` is the number of targets in all these steps together.
        """
        self.values = {name: list(tensor.to(device).unbind()) for name, tensor in tensors.items()}
        self.num_targets = num_targets


def stacked(values: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """Stack the scalars in `values` into a tensor (n,). None becomes 0.

    The zeros are created on the device. Copying zeros from the host would make the host wait for the device. `device` is used only if all
    values are None.
    """
    known = [value for value in values if value is not None]
    nothing = torch.zeros_like(known[0]) if known else torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([nothing if value is None else value for value in values])
