"""What the steps since the last report measured, kept on the device so that no step waits for the host."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Row = dict[str, float | int]
QUANTITIES = ("loss", "correct", "norm", "skipped")


@dataclass(frozen=True)
class Reading:
    """A window on the host, a number a step: mean loss, right answers, norm of the gradient, 1.0 where the step changed nothing."""

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
        """Which step of the window, from 0, was the first whose loss or gradient is not finite."""
        return next((index for index in range(self.steps) if not math.isfinite(self.loss[index] + self.norm[index])), None)

    def averages(self, num_targets: int) -> Row:
        """Over the steps that changed the weights; `num_targets` were in all steps together."""
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
    """Scalars on the device, one a step and quantity."""

    values: dict[str, list[Tensor | None]] = field(default_factory=lambda: {name: [] for name in QUANTITIES})
    num_targets: int = 0

    def add(self, num_targets: int, **values: Tensor | None) -> None:
        """What one step measured, by the names of QUANTITIES; None is 0, of which nothing is computed."""
        for name in QUANTITIES:
            self.values[name].append(values[name])
        self.num_targets += num_targets

    def read(self) -> Reading:
        """The one place where the loop waits for the device. There must be a step to read."""
        return Reading(*torch.stack([values.double() for values in self.tensors().values()]).tolist())

    def tensors(self) -> dict[str, Tensor]:
        """(steps,) of each quantity; empty where no step was made."""
        known = [value for values in self.values.values() for value in values if value is not None]
        return {name: stacked(values, known[0].device) for name, values in self.values.items()} if known else {}

    def restore(self, tensors: dict[str, Tensor], num_targets: int, device: torch.device) -> None:
        """Go on from what `tensors()` gave."""
        self.values = {name: list(tensors[name].to(device).unbind()) if name in tensors else [] for name in QUANTITIES}
        self.num_targets = num_targets


def stacked(values: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """On `device`, also where nothing was measured: what comes from the host would be waited for."""
    known = [value for value in values if value is not None]
    nothing = torch.zeros_like(known[0]) if known else torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([nothing if value is None else value for value in values])
