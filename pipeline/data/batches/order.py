"""The order of the samples: an endless stream of shuffled epochs. A batch is a range of positions in this stream."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.seeding import derive


@dataclass(frozen=True)
class Order:
    """The order of the samples in training: an endless stream of epochs, each with all n samples in a random order of its own.

    Position p of the stream belongs to epoch p // n, and contains the sample `permutation(p // n)[p % n]`. A batch may span two epochs, so
    every batch is full.
    """

    num_samples: int
    seed: int

    def permutation(self, epoch: int) -> Tensor:
        """Return the order of the samples in an epoch, (n,). It is drawn on the CPU, so it is the same for every device."""
        generator = torch.Generator().manual_seed(derive(self.seed, "order", epoch))
        return torch.randperm(self.num_samples, generator=generator)

    def windows(self, start: int, count: int) -> Iterator[tuple[int, slice]]:
        """Divide `count` positions of the stream, from `start` on, by epoch. Yield pairs: the number of an epoch, and a slice of its
        permutation.
        """
        while count > 0:
            epoch, offset = divmod(start, self.num_samples)
            taken = min(count, self.num_samples - offset)
            yield epoch, slice(offset, offset + taken)
            start, count = start + taken, count - taken
