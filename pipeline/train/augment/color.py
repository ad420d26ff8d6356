"""Changes of a cropped image: flip, colour jitter and cutout."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.train.augment import pixels
from pipeline.train.augment.pixels import FINE, Pixels, RandomSource, Table, divided

LUMA = (77, 150, 29)
"""Weights of red, green and blue in the grey value of a pixel, in 256ths (ITU-R BT.601)."""
SCALE = 1024
"""Fixed-point scale of the jitter factors. Each factor is at most 2, so that all factors times a byte fit in the 24 bits of float32."""


class Flip:
    """Flips images left to right.

    In the mode `random`, each image is flipped in each epoch with probability 1/2. In the mode `alternating`, each image is flipped in
    every second epoch. Whether its first flip is in the first or the second epoch is random.
    """

    num_draws = 1

    def __init__(self, mode: Literal["random", "alternating"]) -> None:
        self.mode = mode

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
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

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
        """Return three random weights per sample, (3, num_samples), as integers in units of 1/1024.

        In this order, they are the weights of the pixel, of its grey value and of the image's mean grey value.
        """
        uniform = generator_for("jitter", epoch).uniform(-1.0, 1.0, (3, num_samples))
        brightness, contrast, saturation = (1 + strength * row for strength, row in zip(self.strengths, uniform, strict=True))
        parts = np.stack([contrast * saturation, contrast * (1 - saturation), 1 - contrast])
        table: Table = np.rint(brightness * parts * SCALE).astype(np.int64)
        return table

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

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
        return pixels.centres(generator_for("cutout", epoch), self.image, num_samples)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        hidden = pixels.mask(draws, self.side, self.side, self.image)
        return torch.where(hidden[..., None], self.colour, images)
