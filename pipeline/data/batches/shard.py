"""Says which samples of each batch this process trains on."""

from dataclasses import dataclass, replace

from pipeline.data.batches.batch_index import BatchIndex, joined


@dataclass(frozen=True)
class Shard:
    """The share of this process in every batch, if `count` processes train together: the `number`-th of `count` equal parts, from 0.

    The share is divided into `lanes` lanes of equal size. Each lane is divided into micro-batches on its own.
    """

    number: int = 0
    count: int = 1
    lanes: int = 1

    def own(self, batch_size: int) -> slice:
        """Return the positions of this process's samples in a batch."""
        size = batch_size // self.count
        return slice(self.number * size, (self.number + 1) * size)

    def of(self, batch: BatchIndex, *, with_partners: bool) -> BatchIndex:
        """Return the samples of `batch` that this process needs.

        The first samples are its own. If `with_partners` is True, their partners in mixup and CutMix follow, unless they are its own
        samples too: the partner of sample i of a whole batch is sample n - 1 - i. In both cases, the partner of sample i of the result is
        sample n - 1 - i of the result.

        All lengths of the result are the largest length in the whole batch, so that every process cuts off the same padding.
        """
        if self.count == 1:
            return batch
        own = self.own(len(batch))
        mirrored = slice(len(batch) - own.stop, len(batch) - own.start)
        found = joined([batch.part(own), batch.part(mirrored)]) if with_partners and mirrored != own else batch.part(own)
        return found if batch.lengths is None else replace(found, lengths=batch.lengths.max().expand(len(found)))


WHOLE = Shard()
"""The share of a process that trains alone: the whole batch, as one lane."""
