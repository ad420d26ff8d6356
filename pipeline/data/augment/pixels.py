"""Images as they are kept and moved: a pixel is one integer of one to eight bytes, or several.

What is computed with bytes is exact in float32: light in 1024ths of a byte, a mixed sample in 256ths, a window that is resized both ways in
65,536ths. So every device makes the same bytes of it.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.spec import Spec

BYTE = 255
FINE = 256
"""Parts of a pixel and of a share. Not more: two interpolations make parts of a byte by its square, which takes all 24 bits of float32."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers that hold the channels of a pixel: one to be moved where there would be several."""


@dataclass(frozen=True)
class Pixels:
    """How the pixels of some images are packed into words, and what there is to know of them."""

    spec: Spec
    device: torch.device

    @cached_property
    def word(self) -> torch.dtype:
        return next((dtype for size, dtype in WORDS.items() if size >= self.spec.channels), torch.int64)

    @cached_property
    def size_bytes(self) -> int:
        """Of one pixel, its unused bytes included."""
        return -(-self.spec.channels // self.word.itemsize) * self.word.itemsize

    @property
    def mean_colour(self) -> Tensor:
        """(words,)."""
        colour = torch.tensor([round(mean * BYTE) for mean in self.spec.mean], dtype=torch.uint8)
        return pad(colour, (0, self.size_bytes - self.spec.channels)).view(self.word).to(self.device)

    def packed(self, images: Tensor, border: int = 0) -> Tensor:
        """Images (n, height, width, channels) uint8, with a black border, as (n, height, width, words)."""
        return pad(images, (0, self.size_bytes - self.spec.channels, border, border, border, border)).contiguous().view(self.word)

    def unpacked(self, words: Tensor) -> Tensor:
        """The reverse, for words that lie as `packed` leaves them."""
        return words.view(torch.uint8)[..., : self.spec.channels]

    def repacked(self, values: Tensor) -> Tensor:
        """Numbers (n, height, width, size_bytes), rounded and clipped to bytes, as `packed` leaves them."""
        found: Tensor = rounded(values).view(self.word)
        return found


def rounded(values: Tensor) -> Tensor:
    """To the nearest byte."""
    return values.round().clamp(0, BYTE).to(torch.uint8)


def divided(total: Tensor, count: int) -> Tensor:
    """`total / count`, rounded in one way everywhere: by a plain number a GPU divides as by its reciprocal."""
    return total / torch.full_like(total, count)
