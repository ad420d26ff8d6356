"""Makes batches on the device from the prepared data, without worker processes."""

import math
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor

from pipeline.core.prepared import Split
from pipeline.core.refusal import counted
from pipeline.inference.batch import Batch, without_padding
from pipeline.inference.batches import batch_index
from pipeline.inference.batches.batch_index import BatchIndex, Placement, Samples, Windows
from pipeline.inference.batches.blocks import WHOLE, Block, BlockBatch, Share, WindowBatch, WithinBatch, next_tokens, targets_within

if TYPE_CHECKING:
    from pipeline.inference.batch import Augmentation

NUM_SLOTS = 3
"""One slot for the batch that the step uses, one for the batch being copied to the device, one for the batch being read."""


def event(*, blocking: bool = False) -> torch.cuda.Event:
    """Return a CUDA event. If `blocking` is True, a thread that synchronises with the event sleeps instead of spinning."""
    return torch.cuda.Event(blocking=blocking)  # type: ignore[no-untyped-call]  # untyped in torch


class Slot:
    """A reusable buffer for one batch: pinned memory on the host and, if there is a GPU, a second buffer on the GPU."""

    batch_index: BatchIndex

    def __init__(self, num_samples: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.host = torch.empty((num_samples, *shape), dtype=dtype, pin_memory=on_gpu)
        self.on_device = torch.empty_like(self.host, device=device) if on_gpu else self.host
        self.copied = event(blocking=True) if on_gpu else None
        self.used = event() if on_gpu else None
        self.record_use()  # the allocator reuses freed blocks, so kernels launched earlier may still read this memory

    def fill(self, stored: Samples | Windows, batch_index: BatchIndex, copy_stream: torch.cuda.Stream | None) -> None:
        """Read a batch into the slot and, if there is a GPU, start its copy to the GPU. The reader thread calls this method.

        The copy runs on the CUDA stream `copy_stream`, after the kernels that read the previous batch from the slot. Without a GPU,
        `copy_stream` is None.
        """
        if self.copied:
            self.copied.synchronize()  # blocks the reader thread only, not the training loop
        stored.copy_rows(batch_index.rows.numpy(), self.host.numpy())
        self.batch_index = batch_index
        if copy_stream and self.copied and self.used:
            with torch.cuda.stream(copy_stream):
                copy_stream.wait_event(self.used)
                self.on_device.copy_(self.host, non_blocking=True)
                self.on_device.record_stream(copy_stream)  # otherwise the allocator could reuse the memory before the copy has run
                self.copied.record(copy_stream)

    def take(self) -> Tensor:
        """Return the inputs of the batch in the slot, on the device. The training loop calls this method.

        The copy to a GPU may still be running. Later kernels of the current CUDA stream wait for it, but the host does not.
        """
        if self.copied:
            torch.cuda.current_stream(self.on_device.device).wait_event(self.copied)
        return self.on_device

    def record_use(self) -> None:
        """Record that all kernels launched so far may use the slot: the next copy into it waits for them. Called by the training loop."""
        if self.used:
            self.used.record(torch.cuda.current_stream(self.on_device.device))


class Prefetcher(threading.Thread):
    """A thread that reads batches ahead. It fills slots from the queue `free`, one batch each, and puts them into the queue `ready`.

    None in `free` tells the thread to stop. After the last batch, the thread puts None into `ready`; if it fails, it puts the exception
    there.
    """

    def __init__(self, stored: Samples | Windows, batch_indices: Iterable[BatchIndex], device: torch.device) -> None:
        super().__init__(name="reader", daemon=True)
        self.stored, self.batch_indices, self.device = stored, batch_indices, device
        self.free: SimpleQueue[Slot | None] = SimpleQueue()
        self.ready: SimpleQueue[Slot | BaseException | None] = SimpleQueue()

    def run(self) -> None:
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # the current device is per thread and defaults to the first GPU
            copy_stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]  # untyped in torch
            for number, batch_index in enumerate(self.batch_indices):
                slot = (
                    Slot(len(batch_index), self.stored.row_shape, self.stored.dtype, self.device) if number < NUM_SLOTS else self.free.get()
                )
                if slot is None:
                    return
                slot.fill(self.stored, batch_index, copy_stream)
                self.ready.put(slot)
            self.ready.put(None)
        except BaseException as error:  # raised again by `read_ahead`, in the training loop
            self.ready.put(error)


def read_ahead(stored: Samples | Windows, batch_indices: Iterable[BatchIndex], device: torch.device) -> Iterator[tuple[Tensor, BatchIndex]]:
    """Yield the pair (inputs, batch index) for each BatchIndex. The inputs (n, ...) are on `device`.

    All BatchIndex objects must have the same length. The next iteration may overwrite the inputs. Errors of the reader thread are
    raised here.
    """
    prefetcher = Prefetcher(stored, batch_indices, device)
    prefetcher.start()
    try:
        while (slot := prefetcher.ready.get()) is not None:
            if isinstance(slot, BaseException):
                raise slot
            yield slot.take(), slot.batch_index
            slot.record_use()
            prefetcher.free.put(slot)
    finally:
        prefetcher.free.put(None)
        prefetcher.join()


RESIDENT_SHARE = 0.5
"""A split is stored on the device if it takes at most this share of the device's free memory."""
BLOCK_BYTES, BLOCK_BATCHES = 2**24, 16
"""Limits of the size and the number of batches that are gathered at once, to share the fixed cost of each operation.

A single batch may be larger."""


class SplitTensors:
    """The samples of a split as tensors: either stored on the device, or read from the disk for each batch.

    Both ways give the same batches. `resident` is True to store the samples on the device, and False to read them from the disk. If
    `resident` is None, they are stored on the device if they take at most the share RESIDENT_SHARE of its free memory. `num_sharing`
    processes on this machine share the memory of its CPU.
    """

    def __init__(
        self,
        split: Split,
        device: torch.device,
        augmentation: "Augmentation | None" = None,
        *,
        resident: bool | None = None,
        num_sharing: int = 1,
    ) -> None:
        self.split, self.device = split, device
        self.augmentation = augmentation if augmentation and augmentation.active else None
        self.resident = self.size_bytes <= RESIDENT_SHARE * free_bytes(device, num_sharing) if resident is None else resident
        self.stored = Windows(split.inputs) if split.windows else Samples(split.inputs)
        self.placement = Placement(
            torch.from_numpy(split.targets),
            device,
            device if self.resident else torch.device("cpu"),
            lengths=None if split.lengths is None else torch.from_numpy(split.lengths),
            window=split.inputs.shape[1] if split.windows else None,
            num_targets=torch.from_numpy(split.within.num_targets(split.inputs)).double() if split.within else None,
        )
        if self.resident:
            self.held = self.packed(self.augmentation) if self.augmentation else self.stored.on_device(device)

    def __len__(self) -> int:
        return len(self.split)

    def __str__(self) -> str:
        size = f"{counted(len(self), 'sample')} ({self.size_bytes / 1e6:.1f} MB)"
        return f"{size} held on {self.device}" if self.resident else f"{size} read from the disk, a batch ahead"

    @property
    def size_bytes(self) -> int:
        """Return the size in bytes of the split's inputs on the device.

        If there is an augmentation, this is the size of the packed images (see train/augment/pixels.py).
        """
        return self.augmentation.packed_bytes(len(self)) if self.augmentation else self.split.inputs.nbytes

    def packed(self, augmentation: "Augmentation") -> Tensor:
        """Return all images on the device in the packed format. They are packed in pieces: the device never holds two forms of all of them."""
        images = torch.from_numpy(self.split.inputs)
        piece = augmentation.packed(images[:1].to(self.device))
        found = piece.new_empty((len(images), *piece.shape[1:]))
        size = max(1, BLOCK_BYTES // images[0].nbytes)
        for part, place in zip(torch.split(images, size), torch.split(found, size), strict=True):
            place.copy_(augmentation.packed(part.to(self.device)))
        return found

    def blocks(self, batch_indices: Iterable[BatchIndex]) -> Generator[Block]:
        """Yield the block of samples for each BatchIndex. Use each block before the next iteration, which may overwrite the inputs of this
        block.
        """
        if self.resident:
            for batch_index in batch_indices:
                yield Block(batch_index, self.held, self.augmentation, resident=True)
            return
        for inputs, batch_index in read_ahead(self.stored, batch_indices, self.device):
            yield Block(batch_index, inputs, self.augmentation)

    def is_small(self, num_samples: int) -> bool:
        return num_samples * math.prod(self.split.inputs.shape[1:]) * self.split.inputs.itemsize <= BLOCK_BYTES

    def block_size(self, batch_size: int) -> int:
        """Return how many batches are gathered at once. If the split is read from the disk, this is always 1."""
        return max((count for count in range(2, BLOCK_BATCHES + 1) if self.resident and self.is_small(count * batch_size)), default=1)


def free_bytes(device: torch.device, num_sharing: int) -> int:
    """Return the free memory of the device. The free memory of a CPU is divided by `num_sharing`, the number of processes that use it."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available // num_sharing


def training(tensors: SplitTensors, *, batch_size: int, seed: int, start: int, share: Share = WHOLE) -> Generator[BlockBatch]:
    """Yield training batches endlessly. All batches are full.

    `seed` decides the order of the samples. `start` is the number of steps that are already done: their batches are left out. `share` says
    which samples of a batch this process trains on; the others are not read.
    """
    num_batches = tensors.block_size(batch_size) if share.count == 1 else 1
    size = batch_size * num_batches
    whole = batch_index.training(tensors.placement, tensors.augmentation, size=size, seed=seed, first=start * batch_size)
    mixes = tensors.augmentation is not None and tensors.augmentation.mixing is not None
    gathers_whole_block = tensors.is_small(size)
    within = tensors.split.within
    batch_class = WindowBatch if tensors.split.windows else partial(WithinBatch, described=within) if within else BlockBatch
    with closing(tensors.blocks(share.of(index, with_partners=mixes) for index in whole)) as blocks:
        for block in blocks:
            num_local_samples = len(block.batch_index) // num_batches
            for first in range(0, len(block.batch_index), num_local_samples):
                yield batch_class(block, slice(first, first + num_local_samples), gathers_whole_block, batch_size, share)


def scoring(tensors: SplitTensors, *, batch_size: int, share: Share = WHOLE) -> Iterator[tuple[Batch, int]]:
    """Yield pairs: a batch, and the number of samples in it that are not padding. All samples of the split come once, in order.

    All batches have the same size. If too few samples are left for the last batch, it is filled with padding: repetitions of its first
    sample, which the caller must leave out.

    If `share` is one of several, each process gets every `share.count`-th batch, from number `share.number` on. All get equally many: a
    batch beyond the end of the split is all padding.
    """
    split, num_batches = tensors.split, -(-len(tensors) // batch_size)
    numbers = range(share.number, -(-num_batches // share.count) * share.count, share.count)
    batch_indices = batch_index.scoring(tensors.placement, batch_size=batch_size, numbers=numbers)
    for number, block in zip(numbers, tensors.blocks(batch_indices), strict=True):
        inputs, index = block.gather(slice(0, batch_size)), block.batch_index
        batch = next_tokens(inputs, pad=split.pad) if split.windows else Batch(without_padding(inputs, index.lengths), index.targets)
        batch = targets_within(batch.inputs, split.within) if split.within else batch
        yield batch, max(0, min(batch_size, len(tensors) - number * batch_size))
