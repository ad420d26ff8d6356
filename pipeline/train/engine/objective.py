"""The interface between a task and the engine: a loss, and sums from which metrics are computed. The cross-entropy that the tasks share."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipeline.core.refusal import Refusal


class Objective:
    """The loss and the metrics of a task. This base class has the cross-entropy of classes or tokens as the loss; each task adds its metrics.

    All methods except `averages` and `count_metrics` work on the device, without host synchronisation.
    """

    def __init__(self, num_outputs: int, label_smoothing: float = 0.0) -> None:
        self.num_outputs, self.label_smoothing = num_outputs, label_smoothing
        self.chance_loss = math.log(num_outputs)
        """The mean loss of a model that has learned nothing: that of guessing all classes or tokens with equal probability."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to minimise, summed over the targets, in float32 at least.

        Raises Refusal if `outputs` do not have one output for each class or token.
        """
        refuse_misfit(outputs, self.num_outputs)
        return summed(outputs, targets, self.label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to report for a validation or test split, summed over the targets: without label smoothing."""
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

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor | None:  # noqa: ARG002  # for tasks that count
        """Return whole numbers for `count_metrics`, such as a count for each class: an int64 tensor of one shape for all calls.

        Only a validation calls this, so training steps do not pay for it. Return None if the task has no such metrics.
        """
        return None

    def count_metrics(self, counts: NDArray[np.int64]) -> dict[str, float]:  # noqa: ARG002  # for tasks that count
        """Return further metrics of a validation by name, on the host. `counts` are the results of the method `counts`, added up."""
        return {}


def summed(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats, summed over all targets that are not IGNORED, in float32 at least.

    `logits` are (..., classes); `targets` are class numbers (...), or class probabilities (..., classes) in floating point.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()
    return functional.cross_entropy(logits.flatten(0, -2), targets, reduction="sum", label_smoothing=label_smoothing)


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
