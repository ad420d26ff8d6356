"""The augmentations that were wished for, one after the other, and their draws."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from pipeline import seeding
from pipeline.data.augment.augmenter import Augmenter, Change, Window
from pipeline.data.augment.color import Cutout, Flip, Jitter
from pipeline.data.augment.crops import Crop, ResizedCrop, Whole
from pipeline.data.augment.mixing import Mixing
from pipeline.data.augment.pixels import Pixels
from pipeline.params.augment import AugmentSettings
from pipeline.spec import Spec


class Augmentation:
    """Draws are (num_draws, n) integers, a function of seed, epoch and sample, for one number of samples."""

    def __init__(self, settings: AugmentSettings, spec: Spec, num_samples: int, *, seed: int, device: torch.device) -> None:
        self.num_samples = num_samples
        self.dice = partial(seeding.generator, seed, "augment")
        self.pixels = Pixels(spec, device)
        self.window = chosen_window(settings, self.pixels)
        self.changes = chosen_changes(settings, self.pixels)
        self.mixing = Mixing(settings.mixup, settings.cutmix, self.pixels) if settings.mixup or settings.cutmix else None
        self.augmenters: list[Augmenter] = [self.window, *self.changes, *([self.mixing] if self.mixing else [])]

    @property
    def active(self) -> bool:
        return any(augmenter.num_draws for augmenter in self.augmenters)

    def draw(self, epoch: int) -> Tensor:
        """(num_draws, all samples) at once, on the CPU, where the bits are the same for every device."""
        return torch.from_numpy(np.concatenate([augmenter.draw(self.dice, epoch, self.num_samples) for augmenter in self.augmenters]))

    def shared_out(self, draws: Tensor) -> tuple[Tensor, ...]:
        """To each augmenter its own."""
        return draws.split_with_sizes([augmenter.num_draws for augmenter in self.augmenters])

    def packed_bytes(self, num_samples: int) -> int:
        """What `num_samples` take when they are packed."""
        spec, border = self.pixels.spec, 2 * self.window.border
        return num_samples * (spec.height + border) * (spec.width + border) * self.pixels.size_bytes

    def packed(self, images: Tensor) -> Tensor:
        """Images (n, height, width, channels) uint8 as `gather` reads them."""
        return self.pixels.packed(images, self.window.border)

    def gather(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Images (n, height, width, channels) uint8 at `rows` (n,) of the packed ones, each by itself as `draws` (num_draws, n) say."""
        for_window, *for_changes = self.shared_out(draws)
        images = self.window.read(packed, rows, for_window)
        for change, its_own in zip(self.changes, for_changes, strict=False):  # those of `mix` are left
            images = change(images, its_own)
        return self.pixels.unpacked(images)

    def mix(self, images: Tensor, partners: Tensor, classes: Tensor, partner_classes: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Gathered images and their classes (n,), with others of the batch: images, and the shares (n, classes) of each class."""
        assert self.mixing
        *_, its_own = self.shared_out(draws)
        return self.mixing(images, partners, classes, partner_classes, its_own)


def chosen_window(settings: AugmentSettings, pixels: Pixels) -> Window:
    if settings.resized_crop:
        return ResizedCrop(settings.resized_crop, pixels)
    return Crop(settings.crop, pixels) if settings.crop else Whole()


def chosen_changes(settings: AugmentSettings, pixels: Pixels) -> list[Change]:
    """In the order in which they are made: what is hidden has the mean colour, whatever the light."""
    found: list[Change] = []
    if settings.flip != "none":
        found.append(Flip(settings.flip))
    if settings.brightness or settings.contrast or settings.saturation:
        found.append(Jitter(settings.brightness, settings.contrast, settings.saturation, pixels))
    if settings.cutout:
        found.append(Cutout(settings.cutout, pixels))
    return found
