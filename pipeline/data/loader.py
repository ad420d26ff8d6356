"""From prepared arrays to batches on the device: no worker processes, no copies of what is not read."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from pipeline.data import course
from pipeline.data.augment.augmentation import Augmentation
from pipeline.data.course import Course, Layout
from pipeline.data.prepared import Split
from pipeline.data.stream import read_ahead

RESIDENT_SHARE = 0.5
"""A split lives on the device when it takes at most this share of the memory that is free there."""


class Images:
    """The samples of a split as tensors: on the device at once where they fit, read from the memory map where not; equal bytes."""

    def __init__(
        self, split: Split, device: torch.device, augmentation: Augmentation | None = None, *, resident: bool | None = None
    ) -> None:
        self.split, self.device = split, device
        self.augmentation = augmentation if augmentation and augmentation.active else None
        self.resident = self.size_bytes <= RESIDENT_SHARE * free_bytes(device) if resident is None else resident
        self.layout = Layout(torch.from_numpy(split.targets), device, device if self.resident else torch.device("cpu"))
        if self.resident:
            inputs = torch.from_numpy(split.inputs).to(device)
            self.inputs = self.augmentation.packed(inputs) if self.augmentation else inputs

    def __len__(self) -> int:
        return len(self.split)

    def __str__(self) -> str:
        size = f"{len(self)} images ({self.size_bytes / 1e6:.1f} MB)"
        return f"{size} held on {self.device}" if self.resident else f"{size} read from the disk, a batch ahead"

    @property
    def size_bytes(self) -> int:
        """On the device."""
        return self.augmentation.packed_bytes(len(self)) if self.augmentation else self.split.inputs.nbytes

    def read(self, courses: Iterable[Course]) -> Generator["Batch"]:
        """A batch for each course; it is good until the next one is asked for."""
        if self.resident:
            for wanted in courses:
                yield Batch(wanted, self.inputs, wanted.rows, self.augmentation)
            return
        for inputs, wanted in read_ahead(self.split.inputs, courses, self.device):
            yield Batch(wanted, inputs, None, self.augmentation)


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


@dataclass(frozen=True)
class Batch:
    """Images that are gathered a micro-batch at a time: memory holds no more than the forward pass needs."""

    course: Course
    inputs: Tensor
    places: Tensor | None
    """Which of the inputs (n,), which are packed where there is an augmentation; None where the inputs are the batch itself, as it was read."""
    augmentation: Augmentation | None

    @property
    def num_targets(self) -> int:
        return len(self.course)

    def parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """At most `most` at a time, in numbers that differ by at most one: images (n, height, width, channels) uint8 and targets (n,), or the
        shares (n, classes) of each class where samples are mixed.
        """
        num_parts = -(-len(self.course) // most)
        for number in range(num_parts):
            yield self.gathered(bounds(number, num_parts, len(self.course)))

    def gathered(self, positions: slice) -> tuple[Tensor, Tensor]:
        part = self.course.part(positions)
        if not self.augmentation or part.draws is None:
            return self.inputs[positions if self.places is None else self.places[positions]], part.targets
        images = self.augmented(self.augmentation, part, positions)
        if not self.augmentation.mixing:
            return images, part.targets
        # the partner's place is that in the whole batch, so that no cut of it changes who is mixed with whom
        mirrored = slice(len(self.course) - positions.stop, len(self.course) - positions.start)
        others = self.course.part(mirrored)
        partners = images if mirrored == positions else self.augmented(self.augmentation, others, mirrored)
        return self.augmentation.mix(images, partners.flip(0), part.targets, others.targets.flip(0), part.draws)

    def augmented(self, augmentation: Augmentation, part: Course, positions: slice) -> Tensor:
        """The images of `part`, which are at `positions` of the batch."""
        assert part.draws is not None
        if self.places is None:
            inputs, places = augmentation.packed(self.inputs[positions]), torch.arange(len(part), device=self.inputs.device)
        else:
            inputs, places = self.inputs, self.places[positions]
        return augmentation.gather(inputs, places, part.draws)


def bounds(number: int, num_parts: int, length: int) -> slice:
    """Of part `number`; the first ones hold one more where they cannot be equal."""
    size, longer = divmod(length, num_parts)
    first = number * size + min(number, longer)
    return slice(first, first + size + (number < longer))


def training(images: Images, *, batch_size: int, seed: int, start: int) -> Generator[Batch]:
    """Endless full batches from step `start` on."""
    return images.read(course.training(images.layout, images.augmentation, batch_size=batch_size, seed=seed, start=start))


def scoring(images: Images, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Every sample once, in order, in batches of one size, and how many of each are real: the last is padded with its first sample."""
    firsts = range(0, len(images), batch_size)
    for first, batch in zip(firsts, images.read(course.scoring(images.layout, batch_size=batch_size)), strict=True):
        yield *batch.gathered(slice(None)), min(batch_size, len(images) - first)
