"""Two samples in one: mixup lays one faintly over the other, CutMix puts a piece of it there, and the target says how much of each there is."""

import numpy as np
import torch
from torch import Tensor

from pipeline.data.augment.part import Dice, Table
from pipeline.data.augment.pixels import FINE, Pixels, divided, inside, rounded


class Mixing:
    """Shares follow Beta(alpha, alpha), a draw a sample; where both are wished for, every sample has one of the two, at even odds."""

    num_draws = 5

    def __init__(self, mixup: float, cutmix: float, pixels: Pixels) -> None:
        self.mixup, self.cutmix, self.spec = mixup, cutmix, pixels.spec
        self.classes = torch.arange(pixels.spec.num_classes, device=pixels.device)

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        """How much of the partner lies over the image, in 256ths, and the piece that is all the partner's: centre and sides, down and across."""
        height, width, _ = self.spec.shape
        table = np.zeros((self.num_draws, num_samples), np.int64)
        if self.mixup:
            table[0] = np.rint(FINE * dice("mixup", epoch).beta(self.mixup, self.mixup, num_samples))
        if self.cutmix:
            generator = dice("cutmix", epoch)
            side = np.sqrt(generator.beta(self.cutmix, self.cutmix, num_samples))
            table[1:3] = np.stack([generator.integers(extent, size=num_samples) for extent in (height, width)])
            table[3:] = np.rint(np.outer((height, width), side))
        if self.mixup and self.cutmix:
            coin = dice("mix", epoch).integers(2, size=num_samples)
            table[0] *= coin
            table[3:] *= 1 - coin
        return table

    def __call__(self, images: Tensor, partners: Tensor, classes: Tensor, partner_classes: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """From images (n, height, width, channels) uint8 and classes (n,) to such images and the shares (n, classes) float32 of each class."""
        weights = self.weights(draws)
        mixed = torch.lerp(images.float(), partners.float(), weights[..., None])
        share = divided(weights.sum((1, 2), dtype=torch.float64), self.spec.height * self.spec.width)[:, None]
        own, other = ((indices[:, None] == self.classes).double() for indices in (classes, partner_classes))
        return rounded(mixed), (own + (other - own) * share).float()

    def weights(self, draws: Tensor) -> Tensor:
        """(n, height, width): which share of each pixel is the partner's, in whole 256ths."""
        laid_over, y, x, height, width = draws
        piece = inside(y, self.spec.height, height)[:, :, None] & inside(x, self.spec.width, width)[:, None, :]
        return torch.where(piece, 1.0, laid_over[:, None, None].float() / FINE)
