"""The interface between a task and the engine: a loss, and sums from which metrics are computed. The plain cross-entropy that the tasks share."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference.params import LossSettings


class Objective:
    """The loss and the metrics of a task. This base class has the losses of classes or tokens; each task adds its metrics, and may override the losses.

    A training minimises the loss that the section `loss` chooses. A validation reports the plain cross-entropy, so that all trainings can be
    compared.

    All methods except `averages` work on the device, without host synchronisation.
    """

    def __init__(self, spec: Spec, minimised: LossSettings, weights: Tensor | None = None) -> None:
        self.num_outputs, self.minimised, self.weights = spec.num_outputs, minimised, weights
        self.chance_loss = minimised.of_guessing(self.num_outputs)
        """The mean training loss of a model that has learned nothing: that of guessing all classes or tokens with equal probability."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to minimise, summed over the targets, in float32 at least.

        Raises Refusal if `outputs` do not have one output for each class, token or number.
        """
        refuse_misfit(outputs, self.num_outputs)
        outputs, targets = self.compared(outputs, targets)
        weights = None if self.weights is None else self.weights.to(outputs.dtype)
        return self.minimised.summed(outputs, targets, weights)

    def compared(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets in the form in which a loss compares them. Those of classes or tokens are `flattened`."""
        return flattened(outputs, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to report for a validation or test split, summed over the targets. In this base class, it is the plain cross-entropy."""
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


def refuse_other_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise Refusal if `outputs` do not have the shape of `targets`. Torch would broadcast them, and a training would run without an error."""
    if outputs.shape != targets.shape:
        raise Refusal(
            f"model.name: this model returns outputs of shape {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}: "
            "correct it: a model returns a tensor (samples, `spec.num_outputs`)"
        )


def refuse_misfit(logits: Tensor, num_outputs: int) -> None:
    """Raise Refusal if `logits` (..., outputs) do not have one output for each class.

    With more outputs than classes, a training would run without an error, and with fewer a GPU reports none until the next synchronisation.
    """
    if not isinstance(logits, Tensor) or logits.shape[-1:] != (num_outputs,):
        found = f"outputs of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise Refusal(
            f"model.name: this model returns {found}, but there are {num_outputs} classes, tokens or numbers: "
            "correct it: a model returns a tensor whose last dimension is `spec.num_outputs`"
        )
