"""Samples that do not fit on the device: a thread reads them from the memory map, a batch ahead of the one that is trained on."""

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.sampling import BatchIndex

NUM_SLOTS = 3
"""One is trained on, one is on its way, one is being filled."""


def event(*, blocking: bool = False) -> torch.cuda.Event:
    """With `blocking` a thread that waits for it sleeps."""
    return torch.cuda.Event(blocking=blocking)  # type: ignore[no-untyped-call]  # torch's own, without types


class Slot:
    """Memory for one batch, used again and again: page-locked on the host, and a second time on a GPU."""

    batch_index: BatchIndex

    def __init__(self, num_samples: int, shape: tuple[int, ...], device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.host = torch.empty((num_samples, *shape), dtype=torch.uint8, pin_memory=on_gpu)
        self.there = torch.empty_like(self.host, device=device) if on_gpu else self.host
        self.copied = event(blocking=True) if on_gpu else None
        self.used = event() if on_gpu else None
        self.leave()  # fresh memory may still be read by what was launched before it was given back

    def fill(self, inputs: NDArray[np.uint8], batch_index: BatchIndex, side: torch.cuda.Stream | None) -> None:
        """Called by the thread. The copy to a GPU begins when nothing there reads the batch before any more."""
        if self.copied:
            self.copied.synchronize()  # the thread waits, not the training
        np.take(inputs, batch_index.rows.numpy(), axis=0, out=self.host.numpy(), mode="clip")  # and lets the interpreter go on
        self.batch_index = batch_index
        if side and self.copied and self.used:
            with torch.cuda.stream(side):
                side.wait_event(self.used)
                self.there.copy_(self.host, non_blocking=True)
                self.there.record_stream(side)  # it may be given back before the copy is made
                self.copied.record(side)

    def take(self) -> Tensor:
        """Called by the training: the batch on the device, which waits for the copy; the host does not."""
        if self.copied:
            torch.cuda.current_stream(self.there.device).wait_event(self.copied)
        return self.there

    def leave(self) -> None:
        """What reads it has been launched."""
        if self.used:
            self.used.record(torch.cuda.current_stream(self.there.device))


class Reader(threading.Thread):
    """Fills free slots with one batch after another, until it is told to stop."""

    def __init__(self, inputs: NDArray[np.uint8], batch_indices: Iterable[BatchIndex], device: torch.device) -> None:
        super().__init__(name="reader", daemon=True)
        self.inputs, self.batch_indices, self.device = inputs, batch_indices, device
        self.free: SimpleQueue[Slot | None] = SimpleQueue()
        self.ready: SimpleQueue[Slot | BaseException | None] = SimpleQueue()

    def run(self) -> None:
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # a thread begins with the first GPU
            side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's own, without types
            for number, batch_index in enumerate(self.batch_indices):
                slot = Slot(len(batch_index), self.inputs.shape[1:], self.device) if number < NUM_SLOTS else self.free.get()
                if slot is None:
                    return
                slot.fill(self.inputs, batch_index, side)
                self.ready.put(slot)
            self.ready.put(None)
        except BaseException as error:  # whatever it is belongs to the training, which waits for a batch
            self.ready.put(error)


def read_ahead(inputs: NDArray[np.uint8], batch_indices: Iterable[BatchIndex], device: torch.device) -> Iterator[tuple[Tensor, BatchIndex]]:
    """Each batch_index, all of one length, with its images (n, height, width, channels) on the device.

    These are good until the next are asked for. Raises what reading them raises.
    """
    reader = Reader(inputs, batch_indices, device)
    reader.start()
    try:
        while (slot := reader.ready.get()) is not None:
            if isinstance(slot, BaseException):
                raise slot
            yield slot.take(), slot.batch_index
            slot.leave()
            reader.free.put(slot)
    finally:
        reader.free.put(None)
        reader.join()
