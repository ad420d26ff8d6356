"""The tensors of one forward pass, and what a training may do to the images among them."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""A target with this value counts in no loss and no metric. It is the default `ignore_index` of torch's cross-entropy."""
NUM_LENGTHS = 8
"""Largest number of different lengths to which batches of padded samples are cut."""


def num_targets(targets: "Tensor") -> "Tensor":
    """Return the number of targets that are not IGNORED (-100), as a scalar on the device. All floating-point targets are counted."""
    if targets.is_floating_point():
        return targets.new_full((), targets.numel())  # filled on the device: a copy from the host would wait
    return (targets != IGNORED).sum()


def without_padding(inputs: "Tensor", lengths: "Tensor | None") -> "Tensor":
    """Cut off padding of `inputs` (n, length) after the longest of `lengths`, rounded up to one of NUM_LENGTHS lengths. `prepare` has padded all
    samples to one length (`core/tokenizer.py: Tokenizer.rows`).

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


class Augmentation(Protocol):
    """Augments images as they become a batch; `pipeline.train.augment` has the only one. An evaluation has none.

    Random integers, the draws (num_draws, n), decide how each of n images changes. Packed images have a format in which they are gathered
    faster.
    """

    @property
    def active(self) -> bool:
        """True if any image changes."""

    @property
    def mixing(self) -> object | None:
        """None if no images are mixed, so that `mix` must not be called."""

    def draw(self, epoch: int, /) -> "Tensor":
        """Return the random integers (num_draws, num_samples) for an epoch."""

    def packed(self, images: "Tensor", /) -> "Tensor":
        """Return images (n, height, width, channels) uint8 in the packed format."""

    def packed_bytes(self, num_samples: int, /) -> int:
        """Return the size of packed images in bytes."""

    def gather(self, packed: "Tensor", rows: "Tensor", draws: "Tensor", /) -> "Tensor":
        """Return the images at `rows` (n,) of `packed`, augmented, as (n, height, width, channels) uint8."""

    def mix(
        self, images: "Tensor", partners: "Tensor", classes: "Tensor", partner_classes: "Tensor", draws: "Tensor", /
    ) -> tuple["Tensor", "Tensor"]:
        """Return images mixed with `partners`, and their class probabilities (n, classes)."""
