"""The tensors of one forward pass."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""A target with this value counts in no loss and no metric. It is the default `ignore_index` of torch's cross-entropy."""


def num_targets(targets: "Tensor") -> "Tensor":
    """Return the number of targets that are not IGNORED (-100), as a scalar on the device. All floating-point targets are counted."""
    if targets.is_floating_point():
        return targets.new_tensor(targets.numel())
    return (targets != IGNORED).sum()


class Batch(NamedTuple):
    """Inputs and targets of the same samples.

    `targets` is None in prediction.
    """

    inputs: "Tensor"
    targets: "Tensor | None" = None
