"""Mixup (blends two samples) and CutMix (pastes a rectangle of one sample into another). Targets become class probabilities."""

import numpy as np
import torch
from torch import Tensor

from pipeline.train.augment import pixels
from pipeline.train.augment.pixels import FINE, Pixels, RandomSource, Table, divided, rounded


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
