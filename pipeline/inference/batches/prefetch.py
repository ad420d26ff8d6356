"""Prefetch for splits that do not fit on the device: a thread reads batches from the disk before the training loop needs them."""

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

import torch
from torch import Tensor

from pipeline.inference.batches.batch_index import BatchIndex, Stored

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

    def fill(self, stored: Stored, batch_index: BatchIndex, copy_stream: torch.cuda.Stream | None) -> None:
        """Read a batch into the slot and, if there is a GPU, start its copy to the GPU. The reader thread calls this method.

        The copy runs on the CUDA stream `copy_stream`, after the kernels that read the previous batch from the slot. Without a GPU,
        `copy_stream` is None.
        """
        if self.copied:
            self.copied.synchronize()  # blocks the reader thread only, not the training loop
        stored.read(batch_index.rows.numpy(), self.host.numpy())
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

    def __init__(self, stored: Stored, batch_indices: Iterable[BatchIndex], device: torch.device) -> None:
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


def read_ahead(stored: Stored, batch_indices: Iterable[BatchIndex], device: torch.device) -> Iterator[tuple[Tensor, BatchIndex]]:
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
