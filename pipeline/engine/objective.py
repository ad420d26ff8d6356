"""The interface of a task to the engine: a loss, and sums from which metrics are computed."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """The loss and the metrics of a task. All methods but `averages` work on the device, without host synchronisation."""

    chance_loss: float
    """The mean loss of a model that has learned nothing."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to minimise, summed over the targets."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to report for a split, summed over the targets."""
        ...

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the sums over the targets that `averages` needs beside the loss, by name.

        Every call returns the same names. None of them is "loss", "norm" or "skipped".
        """
        ...

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return the metrics by name, on the host.

        `sums` contains "loss" and the names that the method `sums` returns, each summed over `num_targets` targets.
        """
        ...
