"""Rows, targets and augmentation draws of each batch: computed once per epoch and sliced for each batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.data.batches.order import Order
from pipeline.data.batches.transfer import moved

if TYPE_CHECKING:
    from pipeline.data.augment.augmentation import Augmentation


@dataclass(frozen=True)
class BatchIndex:
    """The rows (n,) of some samples, their targets (n,), and their augmentation draws (num_draws, n). `draws` is None if there is no augmentation."""

    rows: Tensor
    targets: Tensor
    draws: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, positions: slice) -> "BatchIndex":
        if positions == slice(0, len(self)):
            return self
        draws = None if self.draws is None else self.draws[:, positions]
        return BatchIndex(self.rows[positions], self.targets[positions], draws)


def joined(batch_indices: Sequence[BatchIndex]) -> BatchIndex:
    """Concatenate one or more batch indices."""
    if len(batch_indices) == 1:
        return batch_indices[0]
    draws = [batch_index.draws for batch_index in batch_indices if batch_index.draws is not None]
    rows, targets = (
        torch.cat(tensors) for tensors in zip(*((batch_index.rows, batch_index.targets) for batch_index in batch_indices), strict=True)
    )
    return BatchIndex(rows, targets, torch.cat(draws, dim=1) if draws else None)


@dataclass(frozen=True)
class Placement:
    """Builds batch indices of a split on the right devices.

    The rows of a batch index are placed on `rows_on`, where the inputs are stored. Its targets and draws are placed on `device`, where
    the model is trained. `targets` are the targets of the whole split, on the CPU.
    """

    targets: Tensor
    device: torch.device
    rows_on: torch.device

    def batch_index(self, rows: Tensor, draws: Tensor | None = None) -> BatchIndex:
        """Build the batch index of `rows` (n,). `draws` (num_draws, num_samples) are those of all samples of the split; both are on the CPU."""
        return BatchIndex(
            moved(rows, self.rows_on),
            moved(self.targets[rows], self.device),
            None if draws is None else moved(draws[:, rows], self.device),
        )


def training(placement: Placement, augmentation: "Augmentation | None", *, size: int, seed: int, first: int) -> Iterator[BatchIndex]:
    """Yield batch indices of `size` samples endlessly, beginning at position `first` of the stream of shuffled epochs."""
    order = Order(len(placement.targets), seed)

    @lru_cache(maxsize=2)  # a batch may span two epochs
    def epoch(number: int) -> BatchIndex:
        return placement.batch_index(order.permutation(number), augmentation.draw(number) if augmentation else None)

    for start in count(first, size):
        yield joined([epoch(number).part(positions) for number, positions in order.windows(start, size)])


def scoring(placement: Placement, *, batch_size: int) -> Iterator[BatchIndex]:
    """Return an iterator over batch indices of `batch_size` samples, which together contain every sample once, in order.

    The last batch index is padded by repeating its first sample.
    """
    num_samples = len(placement.targets)
    firsts = range(0, num_samples, batch_size)
    rows = torch.arange(len(firsts) * batch_size)
    rows[num_samples:] = firsts[-1]
    whole = placement.batch_index(rows)
    return (whole.part(slice(first, first + batch_size)) for first in firsts)
