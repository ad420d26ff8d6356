"""Metrics of the steps since the last report, kept on the device so that steps need no host synchronisation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Row = dict[str, float | int]
QUANTITIES = ("loss", "correct", "norm", "skipped")


@dataclass(frozen=True)
class Reading:
    """The metrics of a window on the host, one value per step.

    They are the mean loss, the correct predictions, the gradient norm, and 1.0 where the step was skipped.
    """

    loss: Sequence[float]
    correct: Sequence[float]
    norm: Sequence[float]
    skipped: Sequence[float]

    @property
    def steps(self) -> int:
        return len(self.loss)

    @property
    def num_skipped(self) -> int:
        return int(sum(self.skipped))

    @property
    def first_bad(self) -> int | None:
        """Return the index of the window's first step with a non-finite loss or gradient norm, or None."""
        return next((index for index in range(self.steps) if not math.isfinite(self.loss[index] + self.norm[index])), None)

    def averages(self, num_targets: int) -> Row:
        """Return mean loss and accuracy over the steps that were not skipped, the last gradient norm, and the number of skipped steps.

        `num_targets` is the number of targets in all steps together. Metrics that are not available are left out.
        """
        row: Row = {"train/skipped_steps": self.num_skipped} if self.num_skipped else {}
        applied = [index for index in range(self.steps) if not self.skipped[index]]
        if applied:
            row["train/objective"] = sum(self.loss[index] for index in applied) / len(applied)
            row["train/accuracy"] = sum(self.correct[index] for index in applied) / (num_targets * len(applied) / self.steps)
        if math.isfinite(self.norm[-1]):
            row["train/gradient_norm"] = self.norm[-1]
        return row


@dataclass
class StepMetrics:
    """Scalars on the device, one per step and quantity."""

    values: dict[str, list[Tensor | None]] = field(default_factory=lambda: {name: [] for name in QUANTITIES})
    num_targets: int = 0

    def add(self, num_targets: int, **values: Tensor | None) -> None:
        """Add the metrics of one step, named as in QUANTITIES; None counts as 0 and launches no operation."""
        for name in QUANTITIES:
            self.values[name].append(values[name])
        self.num_targets += num_targets

    def read(self) -> Reading:
        """Copy the metrics to the host: the only host synchronisation between steps. There must be at least one step."""
        return Reading(*torch.stack([values.double() for values in self.tensors().values()]).tolist())

    def tensors(self) -> dict[str, Tensor]:
        """Return a tensor (steps,) for each quantity, or nothing where no step was made."""
        known = [value for values in self.values.values() for value in values if value is not None]
        return {name: stacked(values, known[0].device) for name, values in self.values.items()} if known else {}

    def restore(self, tensors: dict[str, Tensor], num_targets: int, device: torch.device) -> None:
        """Restore what `tensors()` returned."""
        self.values = {name: list(tensors[name].to(device).unbind()) if name in tensors else [] for name in QUANTITIES}
        self.num_targets = num_targets


def stacked(values: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """Stack the scalars, with 0 for None. Zeros are created on `device`: a copy from the host would synchronise."""
    known = [value for value in values if value is not None]
    nothing = torch.zeros_like(known[0]) if known else torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([nothing if value is None else value for value in values])
