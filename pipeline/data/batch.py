"""Batches of images: gathered and augmented for several batches at once, or per micro-batch; the bytes are the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pipeline.data.augment.augmentation import Augmentation
from pipeline.data.sampling import BatchIndex


@dataclass(frozen=True)
class Pictures:
    """Gathers the images of a batch index and augments them, except for mixup and CutMix.

    `pictures[positions]` is (n, height, width, channels) uint8.
    """

    batch_index: BatchIndex
    inputs: Tensor
    looked_up: bool
    """True: `inputs` are all images of the split, packed if they are augmented. False: only those of the batch index, in its order."""
    augmentation: Augmentation | None
    at_once: bool
    """True: the first access gathers all images, with fewer operations. False: each access gathers its own, with less memory."""

    def __len__(self) -> int:
        return len(self.batch_index)

    def __getitem__(self, positions: slice) -> Tensor:
        return self.every[positions] if self.at_once else self.made(positions)

    @cached_property
    def every(self) -> Tensor:
        return self.made(slice(0, len(self)))

    def made(self, positions: slice) -> Tensor:
        part = self.batch_index.part(positions)
        if not self.augmentation or part.draws is None:
            return self.inputs[part.rows if self.looked_up else positions]
        if self.looked_up:
            return self.augmentation.gather(self.inputs, part.rows, part.draws)
        places = torch.arange(len(part), device=self.inputs.device)
        return self.augmentation.gather(self.augmentation.packed(self.inputs[positions]), places, part.draws)


@dataclass(frozen=True)
class Batch:
    """The batch at `positions` of `pictures`: images and targets."""

    pictures: Pictures
    positions: slice

    @cached_property
    def batch_index(self) -> BatchIndex:
        return self.pictures.batch_index.part(self.positions)

    @property
    def num_targets(self) -> int:
        return len(self.batch_index)

    def parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield micro-batches of at most `most` samples, whose sizes differ by at most one.

        Each is images (n, height, width, channels) uint8 and class numbers (n,), or class shares (n, classes) with mixup or CutMix.
        """
        num_parts = -(-self.num_targets // most)
        for number in range(num_parts):
            yield self.part(bounds(number, num_parts, self.num_targets))

    def part(self, positions: slice) -> tuple[Tensor, Tensor]:
        part, images = self.batch_index.part(positions), self.images(positions)
        augmentation = self.pictures.augmentation
        if not augmentation or not augmentation.mixing or part.draws is None:
            return images, part.targets
        # Sample i is mixed with sample n - 1 - i of the whole batch, so that the micro-batch size does not change the pairs.
        mirrored = slice(self.num_targets - positions.stop, self.num_targets - positions.start)
        partners = images if mirrored == positions else self.images(mirrored)
        return augmentation.mix(images, partners.flip(0), part.targets, self.batch_index.part(mirrored).targets.flip(0), part.draws)

    def images(self, positions: slice) -> Tensor:
        """Return the images at `positions` of the batch, before mixing. A part of the batch is gathered by itself, to save memory."""
        if positions == slice(0, self.num_targets):
            return self.pictures[self.positions]
        first = self.positions.start
        return self.pictures.made(slice(first + positions.start, first + positions.stop))


def bounds(number: int, num_parts: int, length: int) -> slice:
    """Return the positions of part `number` of `num_parts`; the first parts hold one more where the sizes cannot be equal."""
    size, longer = divmod(length, num_parts)
    first = number * size + min(number, longer)
    return slice(first, first + size + (number < longer))
