"""Changes of cropped images: flip, colour jitter and cutout of one image, mixup and CutMix of two."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.train.augment import pixels
from pipeline.train.augment.pixels import FINE, Pixels, RandomSource, Table, divided, rounded

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


class Mixing:
    """Mixes each sample with another sample, its partner, by mixup or CutMix.

    The partner's share of the result is drawn from Beta(alpha, alpha) for each sample. `mixup` and `cutmix` are the alphas of the two
    methods; 0 turns a method off. If both are on, each sample gets one of them, chosen with probability 1/2.
    """

    num_draws = 5

    def __init__(self, mixup: float, cutmix: float, pixels: Pixels, *, num_classes: int) -> None:
        self.mixup, self.cutmix, self.image = mixup, cutmix, pixels.images
        self.classes = torch.arange(num_classes, device=pixels.device)

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
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

        `classes` and `partner_classes` are class numbers (n,). `draws` is what `draw` returned for these samples. The probabilities (n,
        classes) are float32.
        """
        weights = self.weights(draws)
        mixed = torch.lerp(images.float(), partners.float(), weights[..., None])
        share = divided(weights.sum((1, 2), dtype=torch.float64), self.image.height * self.image.width)[:, None]
        own, other = ((indices[:, None] == self.classes).double() for indices in (classes, partner_classes))
        return rounded(mixed), (own + (other - own) * share).float()

    def weights(self, draws: Tensor) -> Tensor:
        """Return the weight of the partner at each pixel, (n, height, width).

        It is 1 in the rectangle of CutMix, and elsewhere the weight of mixup, which is 0 without mixup. All weights are multiples of 1/256.
        """
        laid_over, centre, (height, width) = torch.split(draws, [1, 2, 2])
        piece = pixels.mask(centre, height, width, self.image)
        return torch.where(piece, 1.0, laid_over[0, :, None, None].float() / FINE)
