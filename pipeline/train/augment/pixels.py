"""Defines what all augmentations share: packed pixels, and random rectangles.

Pixels are packed into integers of 1, 2, 4 or 8 bytes, or several of 8 bytes, called words: a copy then moves fewer elements. All arithmetic
on bytes is exact in float32: jitter uses multiples of 1/1024, mixing of 1/256, and resizing of 1/65,536. So every device computes the same
bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from pipeline.inputs.image.description import ImageInputs

Draws = NDArray[np.int64]
"""Random integers that decide how each image changes, (num_draws, num_samples)."""


RandomSource = Callable[..., np.random.Generator]
"""A function that returns a random generator. The arguments name its purpose, for example `generator_for("flip", epoch)`.

A purpose always gives the same random numbers. Each augmentation has its own purpose, so that enabling one augmentation does not change the
draws of another.
"""
BYTE = 255
FINE = 256
"""Fixed-point scale of positions and weights. Two interpolations multiply a byte by FINE squared, which needs all 24 bits of float32."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by size in bytes.

A pixel is stored in the smallest of these dtypes that holds all its channels. If there is none, it is stored as several int64.
"""


@dataclass(frozen=True)
class Pixels:
    """Converts images to packed images, in which a pixel is one or several integers, and back.

    `images` describes the size and the number of channels. `device` is the device of the mean colour.
    """

    images: ImageInputs
    device: torch.device

    @cached_property
    def word(self) -> torch.dtype:
        return next((dtype for size, dtype in WORDS.items() if size >= self.images.channels), torch.int64)

    @cached_property
    def size_bytes(self) -> int:
        """Return the size of one packed pixel in bytes. It can exceed the number of channels: a pixel with three channels has one unused
        byte.
        """
        return -(-self.images.channels // self.word.itemsize) * self.word.itemsize

    @property
    def mean_colour(self) -> Tensor:
        """Return the mean colour of the train images as one packed pixel, (words,); `words` is the number of integers per pixel."""
        colour = torch.tensor([round(mean * BYTE) for mean in self.images.mean], dtype=torch.uint8)
        return pad(colour, (0, self.size_bytes - self.images.channels)).view(self.word).to(self.device)

    def packed(self, images: Tensor, border: int = 0) -> Tensor:
        """Add a black border of `border` pixels to images (n, height, width, channels) uint8, and pack them.

        Returns (n, height, width, words), where `words` is the number of integers per pixel.
        """
        return pad(images, (0, self.size_bytes - self.images.channels, border, border, border, border)).contiguous().view(self.word)

    def unpacked(self, words: Tensor) -> Tensor:
        """Return images (n, height, width, channels) uint8, as a view of `words`.

        `words` (n, height, width, integers per pixel) are packed images. They must be contiguous.
        """
        return words.view(torch.uint8)[..., : self.images.channels]

    def repacked(self, values: Tensor) -> Tensor:
        """Round `values`, clip them to 0..255, and return them as packed images (n, height, width, integers per pixel).

        `values` (n, height, width, size_bytes) has a number for each byte of the packed pixels.
        """
        found: Tensor = rounded(values).view(self.word)
        return found


def rounded(values: Tensor) -> Tensor:
    """Round to the nearest integer, clip to 0..255 and convert to uint8."""
    return values.round().clamp(0, BYTE).to(torch.uint8)


def divided(total: Tensor, count: int) -> Tensor:
    """Return `total / count`, rounded in the same way on every device.

    The division is by a tensor. If it were by a Python number, a GPU would multiply by 1 / `count` instead, which is rounded differently.
    """
    return total / torch.full_like(total, count)


def centres(generator: np.random.Generator, image: ImageInputs, num_samples: int) -> Draws:
    """Draw one random pixel in each image as the centre of a rectangle. Return the rows and columns (2, num_samples)."""
    return np.stack([generator.integers(extent, size=num_samples) for extent in (image.height, image.width)])


def mask(centre: Tensor, height: Tensor | int, width: Tensor | int, image: ImageInputs) -> Tensor:
    """Return a mask (n, image height, image width) that is True inside one rectangle per image.

    The rectangles have the centres `centre` (2, n) and the sides `height` and `width`.
    """
    down, across = centre
    return inside(down, image.height, height)[:, :, None] & inside(across, image.width, width)[:, None, :]


def inside(centre: Tensor, extent: int, side: Tensor | int) -> Tensor:
    """Return a mask (n, extent) that is True inside an interval of length `side` around each of n centres.

    Along the second dimension are the positions 0 to `extent` - 1, and `centre` (n,) contains such positions.
    """
    first = centre - side // 2
    last = first + side
    places = torch.arange(extent, device=centre.device)[None, :]
    return (places >= first[:, None]) & (places < last[:, None])
