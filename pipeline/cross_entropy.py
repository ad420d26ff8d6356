"""The cross-entropy of class numbers or class probabilities, which the tasks share."""

import torch
from torch import Tensor
from torch.nn import functional


def summed(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats, summed over all targets that are not IGNORED, in float32 at least.

    `logits` are (..., classes); `targets` are class numbers (...), or class probabilities (..., classes) in floating point.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()
    return functional.cross_entropy(logits.flatten(0, -2), targets, reduction="sum", label_smoothing=label_smoothing)
