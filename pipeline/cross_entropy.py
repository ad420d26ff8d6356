"""The cross-entropy of class numbers or class probabilities, which the tasks share."""

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.refusal import Refusal


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
