"""The interface between a task and the engine: a loss, and sums from which metrics are computed. The plain cross-entropy that the tasks share."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipeline.core.refusal import Refusal
from pipeline.inference.params import LossSettings


class Objective:
    """The loss and the metrics of a task. This base class has the losses of classes or tokens; each task adds its metrics.

    A training minimises the loss that the section `loss` chooses. A validation reports the plain cross-entropy, so that all trainings can be
    compared.

    All methods except `averages` work on the device, without host synchronisation.
    """

    def __init__(self, num_outputs: int, minimised: LossSettings, class_weights: Tensor | None = None) -> None:
        self.num_outputs, self.minimised, self.class_weights = num_outputs, minimised, class_weights
        self.chance_loss = minimised.of_guessing(num_outputs)
        """The mean training loss of a model that has learned nothing: that of guessing all classes or tokens with equal probability."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to minimise, summed over the targets, in float32 at least.

        Raises Refusal if `outputs` do not have one output for each class or token.
        """
        refuse_misfit(outputs, self.num_outputs)
        logits, targets = flattened(outputs, targets)
        weights = None if self.class_weights is None else self.class_weights.to(logits.dtype)
        return self.minimised.summed(logits, targets, weights)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to report for a validation or test split, summed over the targets: the plain cross-entropy."""
        return summed(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the sums from which `averages` computes the metrics, by name, such as the number of correct predictions.

        Every call returns the same names. The names "loss", "norm" and "skipped" are reserved.
        """
        raise NotImplementedError

    def averages(self, sums: Mapping[str, float], num_targets: float) -> dict[str, float]:
        """Return the metrics by name, on the host.

        `sums` contains totals over `num_targets` targets, by name: the loss under the name "loss", and the values that the method `sums`
        returns.
        """
        raise NotImplementedError


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats, summed over all targets that are not IGNORED, in float32 at least. The shapes are those of `flattened`."""
    return functional.cross_entropy(*flattened(logits, targets), reduction="sum")


def flattened(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (n, classes), in float32 at least, and targets (n,) or (n, classes).

    `logits` are (..., classes); `targets` are class numbers (...), or class probabilities (..., classes) in floating point.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.flatten(0, -2), targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()


def balanced_weights(targets: NDArray[np.int64], num_classes: int) -> Tensor:
    """Return a weight for each class (classes,), inversely proportional to its number of `targets`. The mean weight of the targets is 1.

    A class without targets has the weight 0: its target probability, from label smoothing, then counts nowhere.
    """
    counts = np.bincount(targets, minlength=num_classes)
    per_class = len(targets) / np.count_nonzero(counts)
    return torch.tensor(np.divide(per_class, counts, out=np.zeros(num_classes), where=counts > 0), dtype=torch.float32)


def refuse_misfit(logits: Tensor, num_outputs: int) -> None:
    """Raise Refusal if `logits` (..., outputs) do not have one output for each class.

    With more outputs than classes, a training would run without an error, and with fewer a GPU reports none until the next synchronisation.
    """
    if not isinstance(logits, Tensor) or logits.shape[-1:] != (num_outputs,):
        found = f"outputs of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise Refusal(
            f"model.name: this model returns {found}, but there are {num_outputs} classes or tokens: "
            "correct it: a model returns a tensor whose last dimension is `spec.num_outputs`"
        )
