"""From prepared arrays to batches on the device: no worker processes, no copies of what is not read."""

from collections.abc import Iterator

import psutil
import torch
from torch import Tensor

from pipeline.data.augment import Augmentation
from pipeline.data.order import Order
from pipeline.data.prepared import Split

RESIDENT_SHARE = 0.5
"""A split lives on the device when it takes at most this share of the memory that is free there."""


class Images:
    """The samples of a split as tensors: on the device at once where they fit, fetched from the memory map where not; equal bytes."""

    def __init__(
        self, split: Split, device: torch.device, augmentation: Augmentation | None = None, *, resident: bool | None = None
    ) -> None:
        self.augmentation = augmentation if augmentation and augmentation.active else None
        self.device = device
        self.inputs = torch.from_numpy(split.inputs)
        self.targets = torch.from_numpy(split.targets).to(device)
        self.resident = self.fits() if resident is None else resident
        if self.resident:
            self.inputs = self.inputs.to(device)
            if self.augmentation:
                self.inputs = self.augmentation.padded(self.inputs)

    def __len__(self) -> int:
        return len(self.targets)

    def fits(self) -> bool:
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else psutil.virtual_memory().available
        border = 2 * self.augmentation.settings.crop if self.augmentation else 0
        height, width, channels = self.inputs.shape[1:]
        return len(self.inputs) * (height + border) * (width + border) * channels <= RESIDENT_SHARE * free

    def take(self, rows: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images (n, height, width, channels) uint8 and targets (n,) of the rows (n,), all on the device."""
        inputs, places = (self.inputs, rows) if self.resident else self.fetch(rows)
        if self.augmentation and draws is not None:
            return self.augmentation.gather(inputs, places, draws), self.targets[rows]
        return inputs[places], self.targets[rows]

    def fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Copy the rows from the memory map to the device, through pinned memory where that lets the copy overlap."""
        fetched = self.inputs[rows.cpu()]
        if self.device.type == "cuda":
            fetched = fetched.pin_memory().to(self.device, non_blocking=True)
        if self.augmentation:
            fetched = self.augmentation.padded(fetched)
        return fetched, torch.arange(len(rows), device=self.device)


class Batch:
    """One batch, gathered a micro-batch at a time, so that memory holds no more than the forward pass needs."""

    def __init__(self, images: Images, rows: Tensor, draws: Tensor | None) -> None:
        self.images, self.rows, self.draws = images, rows, draws

    @property
    def num_targets(self) -> int:
        return len(self.rows)

    def parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Micro-batches of at most `most` samples, whose sizes differ by at most one."""
        num_parts = -(-len(self.rows) // most)
        draws = self.draws.tensor_split(num_parts) if self.draws is not None else (None,) * num_parts
        for rows, row_draws in zip(self.rows.tensor_split(num_parts), draws, strict=True):
            yield self.images.take(rows, row_draws)


def training(images: Images, *, batch_size: int, seed: int, start: int) -> Iterator[Batch]:
    """Endless full batches from step `start` on."""
    order = Order(len(images), seed=seed, device=images.device)
    step = start
    while True:
        windows = order.windows(step * batch_size, batch_size)
        rows = torch.cat([rows for _, rows in windows])
        draws = None
        if images.augmentation:
            draws = torch.cat([images.augmentation.table(epoch)[rows] for epoch, rows in windows])
        yield Batch(images, rows, draws)
        step += 1


def scoring(images: Images, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Every sample once, in order, in batches of one size: the last is padded with its first sample, and says how many are real."""
    for first in range(0, len(images), batch_size):
        rows = torch.arange(first, min(first + batch_size, len(images)), device=images.device)
        padding = rows[:1].expand(batch_size - len(rows))
        inputs, targets = images.take(torch.cat((rows, padding)), None)
        yield inputs, targets, len(rows)
