"""What happens to a window: mirrored, another light, a piece hidden."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.data.augment import rectangles
from pipeline.data.augment.augmenter import Dice, Table
from pipeline.data.augment.pixels import FINE, Pixels, divided

LUMA = (77, 150, 29)
"""256ths of red, green and blue in grey (ITU-R BT.601)."""
SCALE = 1024
"""Of the factors of light, which are 2 at most: their products, times bytes, stay far below the 24 bits that float32 holds."""


class Flip:
    """Left and right; the mirror image is drawn anew in each epoch, or comes in every second one."""

    num_draws = 1

    def __init__(self, step_settings: Literal["random", "alternating"]) -> None:
        self.step_settings = step_settings

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        if self.step_settings == "random":
            return dice("flip", epoch).integers(2, size=(1, num_samples))
        return (dice("first flip").integers(2, size=(1, num_samples)) + epoch) % 2

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        return torch.where(draws[0].bool().view(-1, 1, 1, 1), images.flip(2), images)


class Jitter:
    """Brightness, contrast and saturation, one after the other, each times a factor of 1 give or take its strength.

    As torchvision's ColorJitter in this order, but clipped once at the end: all three are sums of the pixel, its grey and the mean grey of
    the image. Images have one channel or three.
    """

    num_draws = 3

    def __init__(self, brightness: float, contrast: float, saturation: float, pixels: Pixels) -> None:
        self.strengths, self.pixels = (brightness, contrast, saturation), pixels

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        """How much of the pixel, of its grey and of the mean grey there is to be, in 1024ths."""
        uniform = dice("jitter", epoch).uniform(-1.0, 1.0, (3, num_samples))
        brightness, contrast, saturation = (1 + strength * row for strength, row in zip(self.strengths, uniform, strict=True))
        parts = np.stack([contrast * saturation, contrast * (1 - saturation), 1 - contrast])
        table: Table = np.rint(brightness * parts * SCALE).astype(np.int64)
        return table

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        own, grey, mean = draws.float().view(3, -1, 1, 1, 1)
        values = images.view(torch.uint8).float()
        shade = self.grey(values)
        total = shade.sum((1, 2), keepdim=True, dtype=torch.float64)
        mean_shade = divided(total, self.pixels.spec.height * self.pixels.spec.width).round().float()
        return self.pixels.repacked(torch.addcmul(shade * grey + mean_shade * mean, values, own) / SCALE)

    def grey(self, values: Tensor) -> Tensor:
        """(n, height, width, 1) of the pixels (n, height, width, bytes), as whole numbers."""
        if self.pixels.spec.channels == 1:
            return values
        red, green, blue, *_ = values.unbind(-1)
        return ((LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue) / FINE).round().unsqueeze(-1)


class Cutout:
    """A square of the mean colour, centred where drawn; parts of it may lie outside."""

    num_draws = 2

    def __init__(self, side: int, pixels: Pixels) -> None:
        self.side, self.spec, self.colour = side, pixels.spec, pixels.mean_colour

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        return rectangles.centres(dice("cutout", epoch), self.spec, num_samples)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        hidden = rectangles.mask(draws, self.side, self.side, self.spec)
        return torch.where(hidden[..., None], self.colour, images)
