"""Says which stored samples each batch contains: an endless stream of shuffled epochs, in which a batch is a range of positions.

Rows, targets and augmentation draws are computed once per epoch and sliced per batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.core.seeding import derive

if TYPE_CHECKING:
    from pipeline.inference.batch import Augmentation


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` on `device`. A copy to a GPU goes through pinned memory and does not block the host."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


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


class Samples:
    """Samples that are the rows of `array` (n, ...). `row_shape` is the shape of a sample in a batch."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.row_shape: tuple[int, ...] = array.shape[1:]
        self.dtype = torch.from_numpy(array[:0]).dtype

    def copy_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy the samples at `rows` (n,) to `out` (n, *row_shape). Releases the GIL."""
        np.take(self.array, rows, axis=0, out=out, mode="clip")

    def on_device(self, device: torch.device) -> Tensor:
        """Return all samples as one tensor on `device`. Indexed with `rows` (n,), as `copy_rows` takes them, it gives the samples (n,
        *row_shape).
        """
        return torch.from_numpy(self.array).to(device)


class Windows:
    """Windows of one long sequence of tokens: a window is length + 1 consecutive tokens, and may begin at any token. The interface is that
    of Samples.

    `array` (n, length) stores the sequence, divided into rows. A window that reaches the end of the sequence goes on at its beginning. The
    `rows` that `copy_rows` takes are not rows of `array`: they are the positions in the sequence at which the windows begin.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.sequence, self.length = array.reshape(-1), array.shape[1]
        self.row_shape: tuple[int, ...] = (self.length + 1,)
        self.dtype = torch.from_numpy(array[:0]).dtype

    def copy_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        np.take(self.sequence, rows[:, None] + np.arange(self.length + 1), out=out, mode="wrap")

    def on_device(self, device: torch.device) -> Tensor:
        size = len(self.sequence)
        sequence = torch.empty(size + self.length, dtype=self.dtype, device=device)
        sequence[:size] = torch.from_numpy(self.sequence)
        sequence[size:] = sequence[: self.length]
        return sequence.unfold(0, self.length + 1, 1)  # a view: every window costs no memory


@dataclass(frozen=True)
class BatchIndex:
    """Describes the samples of a batch, except for their inputs.

    `rows` (n,) are the positions of the samples in the split. `targets` (n, ...) are their targets. `draws` (num_draws, n) are the
    random integers for their augmentation, or None if there is no augmentation. `lengths` (n,) are the lengths of the samples without
    their padding, on the CPU, or None if nothing is padded. `num_targets` (n,) are the numbers of targets of the samples, in float64 on the
    CPU, or None if all have equally many.
    """

    rows: Tensor
    targets: Tensor
    draws: Tensor | None = None
    lengths: Tensor | None = None
    num_targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, positions: slice) -> "BatchIndex":
        if positions == slice(0, len(self)):
            return self
        optional = (self.draws, self.lengths, self.num_targets)
        parts = (None if tensor is None else tensor[..., positions] for tensor in optional)
        return BatchIndex(self.rows[positions], self.targets[positions], *parts)


def joined(batch_indices: Sequence[BatchIndex]) -> BatchIndex:
    """Concatenate one or more batch indices into one."""
    if len(batch_indices) == 1:
        return batch_indices[0]
    tensors = {each.name: [getattr(batch_index, each.name) for batch_index in batch_indices] for each in fields(BatchIndex)}
    return BatchIndex(
        **{name: torch.cat(found, dim=1 if name == "draws" else 0) for name, found in tensors.items() if found[0] is not None}
    )


@dataclass(frozen=True)
class Placement:
    """Builds the BatchIndex objects of a split, and places their tensors on the right devices.

    The rows are put on `rows_on`, where the inputs are stored. The targets and the draws are put on `device`, where the model is trained.
    `targets`, `lengths` and `num_targets` (see BatchIndex) are those of the whole split, on the CPU.

    `window` is None unless the split is one long sequence of tokens. The samples are then windows, pieces of this sequence, and `window` is
    the number of inputs of each. The `rows` of a BatchIndex are then the positions in the sequence at which its windows begin.
    """

    targets: Tensor
    device: torch.device
    rows_on: torch.device
    lengths: Tensor | None = None
    window: int | None = None
    num_targets: Tensor | None = None

    def batch_index(self, rows: Tensor, draws: Tensor | None = None, *, offset: int = 0) -> BatchIndex:
        """Build the BatchIndex of the samples at `rows` (n,).

        `draws` (num_draws, num_samples) are the augmentation draws of the whole split, of which those at `rows` are taken. `rows` and
        `draws` must be on the CPU. If the split consists of windows of a token sequence, `rows` are rows of the array that stores the
        sequence; each window begins `offset` tokens after the beginning of its row.
        """
        numbers = rows if self.window is None else (rows * self.window + offset) % (len(self.targets) * self.window)
        return BatchIndex(
            moved(numbers, self.rows_on),
            moved(self.targets[rows], self.device),
            None if draws is None else moved(draws[:, rows], self.device),
            None if self.lengths is None else self.lengths[rows],
            None if self.num_targets is None else self.num_targets[rows],
        )


def training(placement: Placement, augmentation: "Augmentation | None", *, size: int, seed: int, first: int) -> Iterator[BatchIndex]:
    """Yield an endless sequence of BatchIndex objects with `size` samples each.

    The samples come from a sequence of epochs, each shuffled anew (see `Order`; `seed` decides the order). The first sample is the one at
    position `first` of this sequence. `augmentation` is None if the samples are not augmented.
    """
    order = Order(len(placement.targets), seed)

    @lru_cache(maxsize=2)  # a batch may span two epochs
    def epoch(number: int) -> BatchIndex:
        draws = augmentation.draw(number) if augmentation else None
        # windows begin elsewhere in each epoch, so that a model sees every token in many contexts
        offset = derive(seed, "window", number) % placement.window if placement.window else 0
        return placement.batch_index(order.permutation(number), draws, offset=offset)

    for start in count(first, size):
        yield joined([epoch(number).part(positions) for number, positions in order.windows(start, size)])


def scoring(placement: Placement, *, batch_size: int, numbers: Iterable[int]) -> Iterator[BatchIndex]:
    """Return an iterator over the batches with these `numbers`, counted from 0. All batches of the split together have every sample, in
    order.

    If too few samples are left for the last batch, the first sample in it is repeated until it is full. It is returned for larger numbers,
    too.
    """
    num_samples = len(placement.targets)
    firsts = range(0, num_samples, batch_size)
    rows = torch.arange(len(firsts) * batch_size)
    rows[num_samples:] = firsts[-1]
    whole = placement.batch_index(rows)
    return (whole.part(slice(first, first + batch_size)) for first in (firsts[min(number, len(firsts) - 1)] for number in numbers))
