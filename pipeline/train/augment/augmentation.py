"""Applies the configured augmentations in order, and draws the random numbers that they need."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pipeline.core import seeding
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.text.description import TextInputs
from pipeline.train.augment.changes import Crop, Cutout, Flip, Jitter, Mixing, NoCrop, ResizedCrop
from pipeline.train.augment.pixels import Pixels
from pipeline.train.augment.transform import Transform, refuse_unfit, to_bytes, to_floats, transforms_of
from pipeline.train.params import AugmentSettings, TransformsSettings

Window = NoCrop | Crop | ResizedCrop
Change = Flip | Jitter | Cutout
Augmenter = Window | Change | Transform | Mixing


class Draws:
    """The random integers of all augmentations of a split."""

    augmenters: Sequence[Augmenter]

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.generator_for = num_samples, partial(seeding.generator, seed, "augment")

    @property
    def active(self) -> bool:
        return any(augmenter.num_draws for augmenter in self.augmenters)

    def draw(self, epoch: int) -> Tensor:
        """Return the random integers (num_draws, num_samples) for an epoch.

        They are drawn on the CPU, so that they are the same for every device.
        """
        return torch.from_numpy(np.concatenate([each.draw(self.generator_for, epoch, self.num_samples) for each in self.augmenters]))


class Augmentation(Draws):
    """All configured augmentations. Random integers decide how they change each image.

    These integers are called draws. For n samples they are a tensor (num_draws, n). The draws of a sample depend only on the seed, the
    epoch, the position of the sample and the number of samples.
    """

    def __init__(self, settings: TransformsSettings, spec: Spec, num_samples: int, *, seed: int, device: torch.device) -> None:
        super().__init__(num_samples, seed)
        assert isinstance(spec.inputs, ImageInputs)
        self.pixels = Pixels(spec.inputs, device)
        self.window: Window = NoCrop()
        self.changes: list[Change] = []
        if isinstance(settings, AugmentSettings):
            self.window, self.changes = chosen_window(settings, self.pixels), chosen_changes(settings, self.pixels)
        self.transforms = transforms_of(settings.transforms)
        refuse_unfit(self.transforms, self.pixels.images, device)
        self.mixing = chosen_mixing(settings, self.pixels, spec)
        mixing = [self.mixing] if self.mixing else []
        self.augmenters = [self.window, *self.changes, *self.transforms, *mixing]

    def shared_out(self, draws: Tensor) -> tuple[Tensor, ...]:
        """Split the random integers `draws` (num_draws, n) into one tensor per augmentation, in the order of `augmenters`."""
        return draws.split_with_sizes([augmenter.num_draws for augmenter in self.augmenters])

    def packed_bytes(self, num_samples: int) -> int:
        """Return the size in bytes of `num_samples` images in the packed format (see train/augment/pixels.py). The border around each image, which
        random crops need, is included.
        """
        images, border = self.pixels.images, 2 * self.window.border
        return num_samples * (images.height + border) * (images.width + border) * self.pixels.size_bytes

    def packed(self, images: Tensor) -> Tensor:
        """Convert images (n, height, width, channels) uint8 to the packed format (see train/augment/pixels.py) that `gather` reads."""
        return self.pixels.packed(images, self.window.border)

    def gather(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the images at `rows` (n,) of `packed`, augmented, as (n, height, width, channels) uint8.

        `packed` contains packed images. `draws` (num_draws, n) are the random integers that control the augmentation. Mixup and CutMix
        are not applied here, but by `mix`.
        """
        for_window, *for_changes = self.shared_out(draws)
        images = self.window.crop(packed, rows, for_window)
        for change, its_own in zip(self.changes, for_changes, strict=False):  # not strict: the draws for `mix` are left over
            images = change(images, its_own)
        images = self.pixels.unpacked(images)
        if not self.transforms:
            return images
        values = to_floats(images)
        for transform, its_own in zip(self.transforms, for_changes[len(self.changes) :], strict=False):
            values = transform.of_images(values, its_own)
        return to_bytes(values)

    def mix(self, images: Tensor, partners: Tensor, classes: Tensor, partner_classes: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Apply mixup or CutMix to images that `gather` returned. Return the mixed images and their class probabilities (n, classes).

        Image i is mixed with image i of `partners`. `classes` and `partner_classes` are class numbers (n,). `draws` (num_draws, n) are
        the random integers that control the augmentation. The probabilities are float32.
        """
        assert self.mixing
        *_, its_own = self.shared_out(draws)
        return self.mixing(images, partners, classes, partner_classes, its_own)


class TextAugmentation(Draws):
    """All configured transforms of texts. The interface is that of Augmentation, but texts are not packed, and never mixed."""

    mixing = None

    def __init__(self, settings: TransformsSettings, spec: Spec, num_samples: int, *, seed: int, device: torch.device) -> None:
        super().__init__(num_samples, seed)
        assert isinstance(spec.inputs, TextInputs)
        self.text = spec.inputs
        self.augmenters = self.transforms = transforms_of(settings.transforms)
        refuse_unfit(self.transforms, self.text, device)

    def packed_bytes(self, num_samples: int) -> int:
        return num_samples * self.text.length * self.text.dtype().itemsize

    def packed(self, tokens: Tensor) -> Tensor:
        return tokens

    def gather(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the tokens (n, length) at `rows` (n,) of `packed`, changed."""
        tokens = packed[rows]
        for transform, its_own in zip(self.transforms, torch.split(draws, 1), strict=True):
            tokens = transform.of_texts(tokens, its_own, self.text)
        return tokens

    def mix(self, *_: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("texts are not mixed")


def of(settings: TransformsSettings, spec: Spec, num_samples: int, *, seed: int, device: torch.device) -> Augmentation | TextAugmentation:
    """Return the augmentation of a split with `num_samples` samples, which `spec` describes."""
    kind = TextAugmentation if spec.inputs.augmented == "tokens" else Augmentation
    return kind(settings, spec, num_samples, seed=seed, device=device)


def refuse_misfit(settings: TransformsSettings, spec: Spec) -> None:
    """Raise Refusal if an augmentation cannot be used for the data that `spec` describes."""
    settings.refuse_other_inputs(spec.inputs, spec.inputs.kind, spec.targets)
    settings.refuse_other_transforms(spec.inputs.kind)
    if isinstance(spec.inputs, ImageInputs):
        settings.refuse_misfit(*spec.inputs.row_shape)


def chosen_mixing(settings: TransformsSettings, pixels: Pixels, spec: Spec) -> Mixing | None:
    """Return the configured mixup or CutMix or both, as one object; None if both are off.

    `pixels` describes the images. Raises Refusal if one of the two is on and the targets are neither classes nor labels.
    """
    if not isinstance(settings, AugmentSettings) or not (settings.mixup or settings.cutmix):
        return None
    if not spec.targets.mixable:
        raise Refusal(
            f"augment: mixup and CutMix need classes or labels, but the targets are of the kind {spec.targets.kind}: write `augment.mixup: 0.0` and `augment.cutmix: 0.0`"
        )
    return Mixing(settings.mixup, settings.cutmix, pixels, num_classes=spec.num_outputs)


def chosen_window(settings: AugmentSettings, pixels: Pixels) -> Window:
    if settings.resized_crop:
        return ResizedCrop(settings.resized_crop, pixels)
    return Crop(settings.crop_padding, pixels) if settings.crop_padding else NoCrop()


def chosen_changes(settings: AugmentSettings, pixels: Pixels) -> list[Change]:
    """Return the configured changes, of flip, colour jitter and Cutout, in the order of application.

    Cutout is last, so that no other change alters the colour of the square that Cutout fills.
    """
    found: list[Change] = []
    if settings.flip != "none":
        found.append(Flip(settings.flip))
    if settings.brightness or settings.contrast or settings.saturation:
        found.append(Jitter(settings.brightness, settings.contrast, settings.saturation, pixels))
    if settings.cutout:
        found.append(Cutout(settings.cutout, pixels))
    return found
