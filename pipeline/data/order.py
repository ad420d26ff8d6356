"""In which order samples are read: one endless stream of shuffled epochs, of which a batch is a window."""

from functools import lru_cache

import torch
from torch import Tensor

from pipeline.seeding import derive


class Order:
    """Position p of the stream is sample `permutation(p // n)[p % n]`; a batch may span two epochs, so every batch is full.

    Drawn on the CPU, where the bits are the same for every device, and moved to the device once an epoch.
    """

    def __init__(self, num_samples: int, *, seed: int, device: torch.device) -> None:
        self.num_samples, self.seed, self.device = num_samples, seed, device
        self.permutation = lru_cache(maxsize=2)(self.draw)

    def draw(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(self.seed, "order", epoch))
        return torch.randperm(self.num_samples, generator=generator).to(self.device)

    def windows(self, start: int, count: int) -> list[tuple[int, Tensor]]:
        """The samples at positions `start` to `start + count` of the stream, as (epoch, rows) for each epoch they touch."""
        found = []
        while count > 0:
            epoch, offset = divmod(start, self.num_samples)
            rows = self.permutation(epoch)[offset : offset + count]
            found.append((epoch, rows))
            start, count = start + len(rows), count - len(rows)
        return found
