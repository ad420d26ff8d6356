"""The tensors of one forward pass."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""A target with this value counts in no loss and no metric. It is the default `ignore_index` of torch's cross-entropy."""
NUM_LENGTHS = 8
"""Largest number of different lengths to which batches of padded samples are cut."""


def num_targets(targets: "Tensor") -> "Tensor":
    """Return the number of targets that are not IGNORED (-100), as a scalar on the device. All floating-point targets are counted."""
    if targets.is_floating_point():
        return targets.new_tensor(targets.numel())
    return (targets != IGNORED).sum()


def without_padding(inputs: "Tensor", lengths: "Tensor | None") -> "Tensor":
    """Cut off padding of `inputs` (n, length) after the longest of `lengths`, rounded up to one of NUM_LENGTHS lengths.

    Few different lengths let a compiler, and the cache of the allocator, reuse what they have.
    """
    if lengths is None:
        return inputs
    step = -(-inputs.shape[1] // NUM_LENGTHS)
    return inputs[:, : -(-int(lengths.max()) // step) * step]


class Batch(NamedTuple):
    """Inputs and targets of the same samples.

    `targets` is None in prediction.
    """

    inputs: "Tensor"
    targets: "Tensor | None" = None
