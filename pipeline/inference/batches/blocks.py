"""Gathers and augments the inputs of batches, of which each process trains on its share: for several batches at once, or per micro-batch.

The results of both are identical.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from pipeline.core.spec import Inputs
from pipeline.inference.batch import IGNORED, Batch, without_padding
from pipeline.inference.batches.batch_index import BatchIndex, joined

if TYPE_CHECKING:
    from pipeline.inference.batch import Augmentation


@dataclass(frozen=True)
class Share:
    """The share of this process in every batch, if `count` processes train together: the `number`-th of `count` equal parts, from 0.

    The share is divided into `lanes` lanes of equal size. Each lane is divided into micro-batches on its own.
    """

    number: int = 0
    count: int = 1
    lanes: int = 1

    def of(self, batch: BatchIndex, *, with_partners: bool) -> BatchIndex:
        """Return the samples of `batch` that this process needs.

        In mixup and CutMix, the partner of sample i of n is sample n - 1 - i. With `with_partners`, the partners of this process's samples
        follow these, in the order of the batch: n - 1 - i is then the place of a partner in the result, too. In the middle one of an odd
        number of shares, samples are partners of each other, so none follow.

        All lengths of the result are the largest length in the whole batch, so that every process cuts off the same padding. All numbers of
        targets are the mean of the whole batch, so that every process divides by the same number.
        """
        if self.count == 1:
            return batch
        size = len(batch) // self.count
        own = slice(self.number * size, (self.number + 1) * size)
        mirrored = slice(len(batch) - own.stop, len(batch) - own.start)
        has_others = with_partners and mirrored != own
        found = joined([batch.part(own), batch.part(mirrored)]) if has_others else batch.part(own)
        found = found if batch.lengths is None else replace(found, lengths=batch.lengths.max().expand(len(found)))
        return found if batch.num_targets is None else replace(found, num_targets=batch.num_targets.mean().expand(len(found)))


WHOLE = Share()
"""The share of a process that trains alone: the whole batch, as one lane."""


@dataclass(frozen=True)
class Block:
    """The samples of one batch, or of several consecutive batches. To gather inputs is to select and augment them.

    `batch_index` describes the samples. If `resident` is True, `inputs` are those of the whole split, which is stored on the device; they
    are packed if there is an augmentation. Otherwise `inputs` were read from the disk: those of the samples, in the order of `batch_index`.
    """

    batch_index: BatchIndex
    inputs: Tensor
    augmentation: "Augmentation | None"
    resident: bool = False

    def gather(self, positions: slice) -> Tensor:
        """Return the augmented inputs (n, ...) of the samples at `positions` of the block. Mixup and CutMix are not applied yet."""
        part = self.batch_index.part(positions)
        if self.augmentation is None or part.draws is None:
            return self.inputs[part.rows if self.resident else positions]
        if self.resident:
            return self.augmentation.gather(self.inputs, part.rows, part.draws)
        rows = torch.arange(len(part), device=self.inputs.device)
        return self.augmentation.gather(self.augmentation.packed(self.inputs[positions]), rows, part.draws)

    @cached_property
    def all_inputs(self) -> Tensor:
        """Return the augmented inputs of all samples of the block. They are gathered at the first access.

        This takes fewer operations than calling `gather` for each batch.
        """
        return self.gather(slice(0, len(self.batch_index)))


@dataclass(frozen=True)
class BlockBatch:
    """One batch: the samples at `positions` of `block`, which may contain further batches.

    If `gathers_whole_block` is True, the inputs of the whole block are gathered when a batch of it first needs inputs, and a batch is mixed
    as a whole. This takes fewer operations than gathering and mixing each micro-batch, but the inputs of the batch stay in memory until its
    step ends.

    The batch has `batch_size` samples. `share` says which of them this process trains on. Only these samples, and their partners in mixup
    and CutMix, are in the block (see `Share.of`).
    """

    block: Block
    positions: slice
    gathers_whole_block: bool
    batch_size: int
    share: Share = WHOLE
    row_noun: ClassVar[str] = "samples"
    """The word for the rows of the batch index in messages."""

    @cached_property
    def batch_index(self) -> BatchIndex:
        return self.block.batch_index.part(self.positions)

    @property
    def num_targets(self) -> int:
        """Return the number of targets of the whole batch, without host synchronisation.

        Every element of `targets` counts: only tokens can be IGNORED, and WindowBatch and WithinBatch count those.
        """
        return self.batch_size * (self.batch_index.targets.numel() // len(self.batch_index))

    @property
    def lane_size(self) -> int:
        """Return the number of samples of a lane."""
        return self.batch_size // self.share.count // self.share.lanes

    def num_parts(self, max_size: int) -> int:
        """Return the number of micro-batches of a lane, if each has at most `max_size` samples."""
        return -(-self.lane_size // max_size)

    def parts(self, max_size: int, lane: int = 0) -> Iterator[Batch]:
        """Yield the micro-batches of lane number `lane` of this process. They have at most `max_size` samples. Their sizes differ by at most
        one; larger ones come first.

        If mixup or CutMix is on, the targets are class probabilities (n, classes).
        """
        num_parts, first = self.num_parts(max_size), lane * self.lane_size
        size, num_larger = divmod(self.lane_size, num_parts)
        for number in range(num_parts):
            positions = slice(first, first + size + (number < num_larger))
            first = positions.stop
            yield Batch(*(tensor[positions] for tensor in self.gathered)) if self.gathers_whole_block else self.made(positions)

    @cached_property
    def gathered(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of this process's share of the batch. Its micro-batches are slices of them."""
        batch = self.made(slice(0, self.batch_size // self.share.count))
        assert batch.targets is not None
        return batch.inputs, batch.targets

    def made(self, positions: slice) -> Batch:
        """Gather the samples at `positions` of the batch, and mix them with their partners if mixup or CutMix is on."""
        part, inputs = self.batch_index.part(positions), self.inputs(positions)
        augmentation = self.block.augmentation
        if augmentation is None or not augmentation.mixing or part.draws is None:
            return Batch(inputs, part.targets)
        # Sample i is mixed with sample n - 1 - i of the whole batch, so that the micro-batch size does not change the pairs.
        mirrored = slice(len(self.batch_index) - positions.stop, len(self.batch_index) - positions.start)
        partners = inputs if mirrored == positions else self.inputs(mirrored)
        partner_targets = self.batch_index.part(mirrored).targets
        return Batch(*augmentation.mix(inputs, partners.flip(0), part.targets, partner_targets.flip(0), part.draws))

    def inputs(self, positions: slice) -> Tensor:
        """Return the inputs at `positions` of the batch, before mixup or CutMix. Padding that no sample of the whole batch needs is cut
        off.

        If `gathers_whole_block` is True, the inputs are taken from `block.all_inputs`. Otherwise only the inputs at `positions` are gathered.
        """
        first = self.positions.start
        in_block = slice(first + positions.start, first + positions.stop)
        gathered = self.block.all_inputs[in_block] if self.gathers_whole_block else self.block.gather(in_block)
        return without_padding(gathered, self.batch_index.lengths)


class WindowBatch(BlockBatch):
    """A batch of a language model. A sample is a window of length + 1 tokens, where length is the number of inputs of the sample.

    The inputs are all tokens of the window but the last, and the targets are all but the first.
    """

    row_noun = "windows from tokens"

    @property
    def num_targets(self) -> int:
        """Return the number of targets, computed on the host.

        A window of length + 1 tokens has length targets. None of them is IGNORED, because the train split has no padding.
        """
        return self.batch_size * (self.block.inputs.shape[-1] - 1)

    def made(self, positions: slice) -> Batch:
        return next_tokens(self.inputs(positions))


@dataclass(frozen=True)
class WithinBatch(BlockBatch):
    """A batch of samples that `described` describes, whose targets are all of their target tokens but the first."""

    described: Inputs | None = None

    @property
    def num_targets(self) -> int:
        assert self.batch_index.num_targets is not None
        return round(self.batch_size * float(self.batch_index.num_targets.mean()))

    def made(self, positions: slice) -> Batch:
        assert self.described is not None
        return targets_within(self.inputs(positions), self.described)


def targets_within(rows: Tensor, described: Inputs) -> Batch:
    """Return samples as inputs, with all of their target tokens but the first as targets, IGNORED at the padding."""
    return Batch(rows, next_tokens(described.target_tokens(rows), pad=described.pad).targets)


def next_tokens(windows: Tensor, *, pad: int | None = None) -> Batch:
    """Split windows (n, length + 1) into inputs, which are all tokens but the last, and targets, which are all tokens but the first.

    So the target of each token is the next token. A target is IGNORED where the input or the target is padding, which has the number `pad`;
    None means that there is no padding.
    """
    inputs, targets = windows[:, :-1], windows[:, 1:].long()
    if pad is not None:
        targets.masked_fill_((inputs == pad) | (targets == pad), IGNORED)
    return Batch(inputs, targets)
