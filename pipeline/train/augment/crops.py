"""Three ways to crop an image: keep the whole image, crop it after padding, or crop a random size and resize the crop."""

import math

import numpy as np
import torch
from torch import Tensor

from pipeline.train.augment.pixels import FINE, Pixels, RandomSource, Table

TALLEST, WIDEST = 3 / 4, 4 / 3
ATTEMPTS = 10


class NoCrop:
    """Keeps the whole image."""

    num_draws = 0
    border = 0

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:  # noqa: ARG002  # nothing is drawn
        return np.empty((0, num_samples), np.int64)

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002  # the draws are empty
        return packed[rows]


class Crop:
    """Adds a black border to the image, and takes a random crop of the original size."""

    num_draws = 2

    def __init__(self, border: int, pixels: Pixels) -> None:
        self.border, self.image = border, pixels.images

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
        return generator_for("crop", epoch).integers(2 * self.border + 1, size=(self.num_draws, num_samples))

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
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

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
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

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
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
