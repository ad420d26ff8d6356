"""Crops of images, and changes of crops: flip, colour jitter and cutout of one image, mixup and CutMix of two.

Each class first draws random integers for all samples of an epoch: `draw` returns them as a table (num_draws, num_samples). Later these
integers control what happens to each image. A crop reads the packed images at `rows` (n,), which must have a border of `border` pixels, and
returns the crops (n, height, width, words). A change is called with such packed images; mixup and CutMix get unpacked ones. In all cases, column i of `draws` (num_draws, n)
controls image i.
"""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.train.augment import pixels
from pipeline.train.augment.pixels import FINE, Draws, Pixels, RandomSource, divided, rounded

TALLEST, WIDEST = 3 / 4, 4 / 3
ATTEMPTS = 10
LUMA = (77, 150, 29)
"""Weights of red, green and blue in the grey value of a pixel, in 256ths (ITU-R BT.601)."""
SCALE = 1024
"""Fixed-point scale of the jitter factors. Each factor is at most 2, so that all factors times a byte fit in the 24 bits of float32."""


class NoCrop:
    """Keeps the whole image."""

    num_draws = 0
    border = 0

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:  # noqa: ARG002  # nothing is drawn
        return np.empty((0, num_samples), np.int64)

    def crop(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002  # the draws are empty
        return packed[rows]


class Crop:
    """Adds a black border to the image, and takes a random crop of the original size."""

    num_draws = 2

    def __init__(self, border: int, pixels: Pixels) -> None:
        self.border, self.image = border, pixels.images

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        return generator_for("crop", epoch).integers(2 * self.border + 1, size=(self.num_draws, num_samples))

    def crop(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        height, width, _ = self.image.row_shape
        num_words, steps, offsets = packed.shape[-1], packed.stride(), 2 * self.border + 1
        # In this view (image, top, left, height, width), each crop is one strided read.
        windows = packed.as_strided(
            (len(packed), offsets, offsets, height, width * num_words), (steps[0], steps[1], steps[2], steps[1], 1), packed.storage_offset()
        )
        top, left = draws.unbind()
        return windows[rows, top, left].view(-1, height, width, num_words)


class ResizedCrop:
    """Takes a random crop, and resizes it bilinearly to the image's size.

    The crop's area is at least `least` times the image's area. Its aspect ratio is between 3:4 and 4:3. The result equals that of
    torchvision's RandomResizedCrop with one exception: if ten random crops in a row do not fit into the image, the whole image is used.
    """

    num_draws = 4
    border = 0

    def __init__(self, least: float, pixels: Pixels) -> None:
        self.least, self.pixels = least, pixels

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        """Return one random crop per sample, as top, left, height and width: (4, num_samples).

        For each crop, up to `ATTEMPTS` sizes are drawn until one fits into the image. If none fits, the crop is the whole image.
        """
        generator, (height, width, _) = generator_for("resized crop", epoch), self.pixels.images.row_shape
        heights, widths = np.full(num_samples, height), np.full(num_samples, width)
        missing = np.arange(num_samples)
        for _ in range(ATTEMPTS):
            area = generator.uniform(self.least, 1.0, len(missing)) * height * width
            ratio = np.exp(generator.uniform(math.log(TALLEST), math.log(WIDEST), len(missing)))
            tall, wide = np.rint(np.sqrt(area / ratio)).astype(np.int64), np.rint(np.sqrt(area * ratio)).astype(np.int64)
            fits = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
            heights[missing[fits]], widths[missing[fits]] = tall[fits], wide[fits]
            missing = missing[~fits]
        return np.stack([generator.integers(height - heights + 1), generator.integers(width - widths + 1), heights, widths])

    def crop(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        top, left, height, width = draws
        image = self.pixels.images
        # Interpolate between rows first, because a row is contiguous in memory, then between columns.
        upper, lower, share = neighbours(top, height, image.height)
        above, below = (packed[rows[:, None], places].view(torch.uint8).float() for places in (upper, lower))
        lines = torch.lerp(above, below, share[:, :, None, None])
        first, second, share = neighbours(left, width, image.width)
        samples, heights = torch.arange(len(rows), device=rows.device), torch.arange(image.height, device=rows.device)
        before, after = (lines[samples[:, None, None], heights[:, None], places[:, None, :]] for places in (first, second))
        return self.pixels.repacked(torch.lerp(before, after, share[:, None, :, None]))


def neighbours(start: Tensor, length: Tensor, extent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for bilinear resizing along one axis, the two source positions of each output pixel and the weight of the second.

    The weight of the first position is 1 minus this weight. Each of the three is a tensor (n, extent). The crop of image i begins at
    `start[i]`, has `length[i]` pixels, and is resized to `extent` pixels. The positions are never outside the crop. The weights are
    multiples of 1/256.
    """
    halves = 2 * torch.arange(extent, device=start.device) + 1
    last = start + length - 1
    position = start[:, None] * FINE + (halves * length[:, None] * FINE + extent) // (2 * extent) - FINE // 2
    position = position.clamp(start[:, None] * FINE, last[:, None] * FINE)
    first = position // FINE
    return first, torch.minimum(first + 1, last[:, None]), (position % FINE).float() / FINE


class Flip:
    """Flips images left to right.

    In the mode `random`, each image is flipped in each epoch with probability 1/2. In the mode `alternating`, each image is flipped in
    every second epoch. Whether its first flip is in the first or the second epoch is random.
    """

    num_draws = 1

    def __init__(self, mode: Literal["random", "alternating"]) -> None:
        self.mode = mode

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        if self.mode == "random":
            return generator_for("flip", epoch).integers(2, size=(1, num_samples))
        return (generator_for("first flip").integers(2, size=(1, num_samples)) + epoch) % 2

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        return torch.where(draws[0].bool().view(-1, 1, 1, 1), images.flip(2), images)


class Jitter:
    """Changes brightness, then contrast, then saturation, each by a random factor between 1 - strength and 1 + strength.

    The result equals that of torchvision's ColorJitter in this order, except that values are clipped only once, at the end. The three
    changes are computed in one step: a new pixel is a weighted sum of the old pixel, its grey value and the image's mean grey value. Images
    must have one or three channels.
    """

    num_draws = 3

    def __init__(self, brightness: float, contrast: float, saturation: float, pixels: Pixels) -> None:
        self.strengths, self.pixels = (brightness, contrast, saturation), pixels

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        """Return three random weights per sample, (3, num_samples), as integers in units of 1/1024.

        In this order, they are the weights of the pixel, of its grey value and of the image's mean grey value.
        """
        uniform = generator_for("jitter", epoch).uniform(-1.0, 1.0, (3, num_samples))
        brightness, contrast, saturation = (1 + strength * row for strength, row in zip(self.strengths, uniform, strict=True))
        parts = np.stack([contrast * saturation, contrast * (1 - saturation), 1 - contrast])
        weights: Draws = np.rint(brightness * parts * SCALE).astype(np.int64)
        return weights

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        own, grey, mean = draws.float().view(3, -1, 1, 1, 1)
        values = images.view(torch.uint8).float()
        shade = self.grey(values)
        total = shade.sum((1, 2), keepdim=True, dtype=torch.float64)
        mean_shade = divided(total, self.pixels.images.height * self.pixels.images.width).round().float()
        return self.pixels.repacked(torch.addcmul(shade * grey + mean_shade * mean, values, own) / SCALE)

    def grey(self, values: Tensor) -> Tensor:
        """Return the grey values of pixels (n, height, width, 1), rounded to whole numbers.

        `values` (n, height, width, size_bytes) are the bytes of packed pixels: first the channels, then unused bytes, which are ignored.
        """
        if self.pixels.images.channels == 1:
            return values
        red, green, blue, *_ = values.unbind(-1)
        return ((LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue) / FINE).round().unsqueeze(-1)


class Cutout:
    """Fills a random square with the mean colour of the train images.

    The centre of the square is inside the image. Parts of the square may be outside.
    """

    num_draws = 2

    def __init__(self, side: int, pixels: Pixels) -> None:
        self.side, self.image, self.colour = side, pixels.images, pixels.mean_colour

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        return pixels.centres(generator_for("cutout", epoch), self.image, num_samples)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        hidden = pixels.mask(draws, self.side, self.side, self.image)
        return torch.where(hidden[..., None], self.colour, images)


class Mixing:
    """Mixes each sample with another sample, its partner, by mixup or CutMix.

    The partner's share of the result is drawn from Beta(alpha, alpha) for each sample. `mixup` and `cutmix` are the alphas of the two
    methods; 0 turns a method off. If both are on, each sample gets one of them, chosen with probability 1/2.
    """

    num_draws = 5

    def __init__(self, mixup: float, cutmix: float, pixels: Pixels, *, num_classes: int) -> None:
        self.mixup, self.cutmix, self.image = mixup, cutmix, pixels.images
        self.classes = torch.arange(num_classes, device=pixels.device)

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Draws:
        """Return five random integers per sample, (5, num_samples).

        Row 0 is the partner's weight in mixup, in units of 1/256. Rows 1 to 4 are the rectangle that CutMix pastes from the partner, in
        pixels: the row and the column of its centre, its height and its width. If mixup does not apply to a sample, its weight is 0; if
        CutMix does not, the height and the width are 0.
        """
        laid_over, centre, sides = (np.zeros((rows, num_samples), np.int64) for rows in (1, 2, 2))
        if self.mixup:
            laid_over[:] = np.rint(FINE * generator_for("mixup", epoch).beta(self.mixup, self.mixup, num_samples))
        if self.cutmix:
            generator = generator_for("cutmix", epoch)
            sides[:] = np.rint(
                np.outer((self.image.height, self.image.width), np.sqrt(generator.beta(self.cutmix, self.cutmix, num_samples)))
            )
            centre = pixels.centres(generator, self.image, num_samples)
        if self.mixup and self.cutmix:
            coin = generator_for("mix", epoch).integers(2, size=num_samples)
            laid_over, sides = laid_over * coin, sides * (1 - coin)
        return np.concatenate([laid_over, centre, sides])

    def __call__(self, images: Tensor, partners: Tensor, classes: Tensor, partner_classes: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Mix `images` with `partners`, both (n, height, width, channels) uint8. Return the mixed images and their class probabilities.

        `classes` and `partner_classes` are class numbers (n,), or 0 or 1 for each label (n, labels). `draws` is what `draw` returned for these samples. The probabilities (n,
        classes) are float32.
        """
        weights = self.weights(draws)
        mixed = torch.lerp(images.float(), partners.float(), weights[..., None])
        share = divided(weights.sum((1, 2), dtype=torch.float64), self.image.height * self.image.width)[:, None]
        own, other = ((each if each.ndim > 1 else each[:, None] == self.classes).double() for each in (classes, partner_classes))
        return rounded(mixed), (own + (other - own) * share).float()

    def weights(self, draws: Tensor) -> Tensor:
        """Return the weight of the partner at each pixel, (n, height, width).

        It is 1 in the rectangle of CutMix, and elsewhere the weight of mixup, which is 0 without mixup. All weights are multiples of 1/256.
        """
        laid_over, centre, (height, width) = torch.split(draws, [1, 2, 2])
        piece = pixels.mask(centre, height, width, self.image)
        return torch.where(piece, 1.0, laid_over[0, :, None, None].float() / FINE)
