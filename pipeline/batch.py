"""The tensors of one forward pass."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""A class or token number that counts in no loss and no metric; the default `ignore_index` of torch's cross-entropy."""


def num_targets(targets: "Tensor") -> "Tensor":
    """Return the number of targets on their device: of class or token numbers those that are not IGNORED, of other targets all elements."""
    if targets.is_floating_point():
        return targets.new_tensor(targets.numel())
    return (targets != IGNORED).sum()


class Batch(NamedTuple):
    """Inputs and targets of the same samples. In prediction there are no targets; `mask` (n, length) is False where a sequence is padded."""

    inputs: "Tensor"
    targets: "Tensor | None" = None
    mask: "Tensor | None" = None

    @property
    def arguments(self) -> "tuple[Tensor, ...]":
        """Return what a model is called with: the inputs, and the mask where there is one."""
        return (self.inputs,) if self.mask is None else (self.inputs, self.mask)
