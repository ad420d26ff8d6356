"""Packed images: each pixel is stored as one integer of 1, 2, 4 or 8 bytes, or as several integers of 8 bytes.

Copies then move fewer elements.

All arithmetic on bytes is exact in float32: jitter in 1024ths of a byte, mixing in 256ths, resizing in two dimensions in 65,536ths.
Therefore every device computes the same bytes.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.inputs.image.description import ImageInputs

BYTE = 255
FINE = 256
"""Fixed-point scale of positions and shares. Two interpolations multiply a byte by FINE squared, which needs all 24 bits of float32."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by size in bytes. The word of a pixel is the smallest of these integers that holds all channels of the pixel, or int64 if none does."""


@dataclass(frozen=True)
class Pixels:
    """Packs and unpacks images of the size and channels that `images` describes."""

    images: ImageInputs
    device: torch.device

    @cached_property
    def word(self) -> torch.dtype:
        return next((dtype for size, dtype in WORDS.items() if size >= self.images.channels), torch.int64)

    @cached_property
    def size_bytes(self) -> int:
        """Return the size of one packed pixel in bytes, including its unused bytes."""
        return -(-self.images.channels // self.word.itemsize) * self.word.itemsize

    @property
    def mean_colour(self) -> Tensor:
        """Return the mean colour of the training images as a packed pixel, (words,)."""
        colour = torch.tensor([round(mean * BYTE) for mean in self.images.mean], dtype=torch.uint8)
        return pad(colour, (0, self.size_bytes - self.images.channels)).view(self.word).to(self.device)

    def packed(self, images: Tensor, border: int = 0) -> Tensor:
        """Pack images (n, height, width, channels) uint8 into (n, height, width, words), adding a black border of `border` pixels."""
        return pad(images, (0, self.size_bytes - self.images.channels, border, border, border, border)).contiguous().view(self.word)

    def unpacked(self, words: Tensor) -> Tensor:
        """Return packed images as a view (n, height, width, channels) uint8. `words` must be contiguous."""
        return words.view(torch.uint8)[..., : self.images.channels]

    def repacked(self, values: Tensor) -> Tensor:
        """Round and clip `values` (n, height, width, size_bytes) to bytes, and pack these into (n, height, width, words)."""
        found: Tensor = rounded(values).view(self.word)
        return found


def rounded(values: Tensor) -> Tensor:
    """Round to the nearest integer, clip to 0..255 and convert to uint8."""
    return values.round().clamp(0, BYTE).to(torch.uint8)


def divided(total: Tensor, count: int) -> Tensor:
    """Return `total / count`, rounded the same on every device: if the divisor were a Python scalar, a GPU would multiply by its reciprocal."""
    return total / torch.full_like(total, count)
