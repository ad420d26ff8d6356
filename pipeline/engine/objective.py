"""What the engine needs from a task: a loss, and sums from which metrics are computed."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """The loss and the metrics of a task. Every method works on the device and without host synchronisation."""

    chance_loss: float
    """The mean loss of a model that has learned nothing."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to minimise, summed over the targets."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to report for a split, summed over the targets."""
        ...

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return further sums over the targets, by name; always the same names, and none of "loss", "norm" and "skipped"."""
        ...

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return the metrics, by name, of sums over `num_targets` targets. Called on the host."""
        ...
