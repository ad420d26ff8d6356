"""Images as a step reads them: gathered and augmented for several batches in one go, or a micro-batch at a time, to the same bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pipeline.data.augment.augmentation import Augmentation
from pipeline.data.sampling import BatchIndex


@dataclass(frozen=True)
class Pictures:
    """The images of a batch_index as its draws say, but for what is mixed: `pictures[positions]` are (n, height, width, channels) uint8."""

    batch_index: BatchIndex
    inputs: Tensor
    looked_up: bool
    """Whether the inputs are those of the split, packed where there is an augmentation; or else these of the batch_index, as they were read."""
    augmentation: Augmentation | None
    at_once: bool
    """Whether all are made when the first are asked for: fewer operations; or else those that are asked for: less memory."""

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
    """The pictures at `positions`, and their targets."""

    pictures: Pictures
    positions: slice

    @cached_property
    def batch_index(self) -> BatchIndex:
        return self.pictures.batch_index.part(self.positions)

    @property
    def num_targets(self) -> int:
        return len(self.batch_index)

    def parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """At most `most` at a time, in numbers that differ by at most one: images (n, height, width, channels) uint8 and targets (n,), or the
        shares (n, classes) of each class where samples are mixed.
        """
        num_parts = -(-self.num_targets // most)
        for number in range(num_parts):
            yield self.part(bounds(number, num_parts, self.num_targets))

    def part(self, positions: slice) -> tuple[Tensor, Tensor]:
        part, images = self.batch_index.part(positions), self.images(positions)
        augmentation = self.pictures.augmentation
        if not augmentation or not augmentation.mixing or part.draws is None:
            return images, part.targets
        # the partner's place is that in the whole batch, so that no cut of it changes who is mixed with whom
        mirrored = slice(self.num_targets - positions.stop, self.num_targets - positions.start)
        partners = images if mirrored == positions else self.images(mirrored)
        return augmentation.mix(images, partners.flip(0), part.targets, self.batch_index.part(mirrored).targets.flip(0), part.draws)

    def images(self, positions: slice) -> Tensor:
        """At positions of the batch, not mixed; a batch that is cut is short of memory, and made piece by piece."""
        if positions == slice(0, self.num_targets):
            return self.pictures[self.positions]
        first = self.positions.start
        return self.pictures.made(slice(first + positions.start, first + positions.stop))


def bounds(number: int, num_parts: int, length: int) -> slice:
    """Of part `number`; the first ones hold one more where they cannot be equal."""
    size, longer = divmod(length, num_parts)
    first = number * size + min(number, longer)
    return slice(first, first + size + (number < longer))
