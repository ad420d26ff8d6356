"""Measures a training: the metrics of the steps since the last report, and the loss and the metrics of a validation."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.inference.batch import num_targets
from pipeline.inference.measuring import Measured
from pipeline.train.engine.objective import Objective
from pipeline.train.group.processes import ALONE, Group

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
    def skipped_at_end(self) -> int:
        """Return how many steps in a row were skipped up to the last one."""
        return next((index for index, skipped in enumerate(reversed(self.skipped)) if not skipped), self.steps)

    def averages(self, num_targets: int, objective: Objective) -> Row:
        """Return a row of the report: the mean loss, the task's metrics, the last gradient norm and the number of skipped steps, by name.

        `num_targets` is the number of targets in all steps together. The loss and the metrics are averaged over the steps that were not
        skipped. Their number of targets is estimated from `num_targets`, as if all steps had equally many. The row has no loss and no
        metrics if every step was skipped, no gradient norm if it is not finite, and no number of skipped steps if it is 0.
        """
        row: Row = {"train/skipped_steps": int(sum(self.skipped))} if any(self.skipped) else {}
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
    """Collects the metrics of each step on the device: the summed loss, the gradient norm, and 1.0 or 0.0 for whether the step was skipped. It
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

    def read_values(self) -> StepValues:
        """Copy the metrics of all steps to the host.

        This makes the host wait for the device; `add` does not. At least one step must have been added.
        """
        tensors = self.tensors()
        # steps of pairs of texts have different numbers of targets: divided by their mean, the losses have the mean of all targets
        tensors[LOSS] = tensors[LOSS] / (self.num_targets / len(tensors[LOSS]))
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


MOST_VALUES = 2**24
"""Outputs that are turned into float64 at once: 128 MiB. A language model has an output for each token of the vocabulary and each position."""


def score(
    predictions: Iterable[tuple[Tensor, Tensor | None]],
    objective: Objective,
    *,
    group: Group = ALONE,
    measured: Measured | None = None,
    pause: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Return the mean loss and the metrics over a split, by name.

    `predictions` has the outputs and the targets of each batch, or of every n-th batch if `group` has n processes. `measured` are further metrics,
    to which nothing was added yet. `pause()` is called after each batch, equally often in all processes. It may raise an exception to end the computation early. The host synchronises with the
    device only at the end. The result is the same for every number of processes. Counts are whole numbers, so their sums are the same for
    every batch size, too.
    """
    rows: list[Tensor] = []
    names: tuple[str, ...] = ()
    for outputs, targets in predictions:
        pause()
        assert targets is not None
        sums = {"loss": exact_loss(objective, outputs, targets), **objective.sums(outputs, targets)}
        names = tuple(sums)
        if measured:
            measured.add(outputs, targets)
        rows.append(torch.stack([*(total.double() for total in sums.values()), num_targets(targets).double()]))
    totals = sum(group.in_turn(torch.stack(rows)), torch.zeros((), dtype=torch.float64, device=rows[0].device))
    assert isinstance(totals, Tensor)
    *sums_of_split, count = totals.tolist()
    by_name = dict(zip(names, sums_of_split, strict=True))
    metrics = {"loss": by_name["loss"] / count, **objective.averages(by_name, count)}
    return metrics | (measured.values(group.gathered, group.in_turn) if measured else {})


def exact_loss(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the summed loss, computed in float64 for some samples at a time: at most MOST_VALUES outputs, or one sample."""
    samples = max(1, MOST_VALUES // max(1, outputs[:1].numel()))
    parts = zip(torch.split(outputs, samples), torch.split(targets, samples), strict=True)
    return torch.stack([objective.loss(part.double(), of_part) for part, of_part in parts]).sum()
