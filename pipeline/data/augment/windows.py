"""Which window of a stored image becomes the training image: all of it, one of its size out of a border, or one of any size, resized."""

import math

import numpy as np
import torch
from torch import Tensor

from pipeline.data.augment.part import Dice, Table
from pipeline.data.augment.pixels import FINE, Pixels

TALLEST, WIDEST = 3 / 4, 4 / 3
ATTEMPTS = 10


class Whole:
    """The image as it is."""

    num_draws = 0
    border = 0

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:  # noqa: ARG002  # nothing is drawn
        return np.empty((0, num_samples), np.int64)

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        return packed[rows]


class Crop:
    """A window of the image's size, out of the image and its black border."""

    num_draws = 2

    def __init__(self, border: int, pixels: Pixels) -> None:
        self.border, self.spec = border, pixels.spec

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        return dice("crop", epoch).integers(2 * self.border + 1, size=(self.num_draws, num_samples))

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        height, width, _ = self.spec.shape
        words, steps, offsets = packed.shape[-1], packed.stride(), 2 * self.border + 1
        # a view in which every crop is one strided read of `height` rows of `width` pixels
        windows = packed.as_strided(
            (len(packed), offsets, offsets, height, width * words), (steps[0], steps[1], steps[2], steps[1], 1), packed.storage_offset()
        )
        top, left = draws
        return windows[rows, top, left].view(-1, height, width, words)


class ResizedCrop:
    """A window with at least `least` of the image's area, of 3:4 to 4:3, resized to the image's size by linear interpolation.

    As torchvision's RandomResizedCrop, which is Inception's. No window is larger than the image, so nothing is shrunk and aliased.
    """

    num_draws = 4
    border = 0

    def __init__(self, least: float, pixels: Pixels) -> None:
        self.least, self.pixels, self.spec = least, pixels, pixels.spec

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        """Top, left, height and width; of several attempts the first that fits into the image, and the whole image where none does."""
        generator, (height, width, _) = dice("resized crop", epoch), self.spec.shape
        area = generator.uniform(self.least, 1.0, (ATTEMPTS, num_samples)) * height * width
        shape = np.exp(generator.uniform(math.log(TALLEST), math.log(WIDEST), (ATTEMPTS, num_samples)))
        heights, widths = np.rint(np.sqrt(area / shape)).astype(np.int64), np.rint(np.sqrt(area * shape)).astype(np.int64)
        fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
        chosen = fits.argmax(0), np.arange(num_samples)
        heights, widths = np.where(fits[chosen], heights[chosen], height), np.where(fits[chosen], widths[chosen], width)
        return np.stack([generator.integers(height - heights + 1), generator.integers(width - widths + 1), heights, widths])

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        top, left, height, width = draws
        above, below, down = neighbours(top, height, self.spec.height)
        before, after, right = neighbours(left, width, self.spec.width)
        # first the rows, which lie together, then the columns
        upper, lower = (packed[rows[:, None], places].view(torch.uint8).float() for places in (above, below))
        lines = torch.lerp(upper, lower, down[:, :, None, None])
        samples, heights = torch.arange(len(rows), device=rows.device), torch.arange(self.spec.height, device=rows.device)
        first, second = (lines[samples[:, None, None], heights[:, None], places[:, None, :]] for places in (before, after))
        return self.pixels.words(torch.lerp(first, second, right[:, None, :, None]))


def neighbours(start: Tensor, length: Tensor, extent: int) -> tuple[Tensor, Tensor, Tensor]:
    """For windows of `length` (n,) pixels from `start` (n,) that become `extent` pixels: the two that each of these lies between, never beyond
    the window, and which share of the way to the second it lies, in whole 256ths; all (n, extent).
    """
    halves = 2 * torch.arange(extent, device=start.device) + 1
    last = start + length - 1
    fine = start[:, None] * FINE + (halves * length[:, None] * FINE + extent) // (2 * extent) - FINE // 2
    fine = fine.clamp(start[:, None] * FINE, last[:, None] * FINE)
    first = fine // FINE
    return first, torch.minimum(first + 1, last[:, None]), (fine % FINE).float() / FINE
