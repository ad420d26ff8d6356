"""Test-time augmentation: averages the logits over several views of each image.

The views are those of airbench (https://github.com/KellerJordan/cifar10-airbench).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pipeline.evaluate.params import Views


class Averaged(nn.Module):
    """Averages the logits of a model over several views of each image, such as its mirror image. `requested` names the views (see `views`).

    Maps `images` (n, height, width, channels) to the weighted mean of the logits.
    """

    def __init__(self, model: nn.Module, requested: Views) -> None:
        super().__init__()
        self.model, self.requested = model, requested
        self.train(model.training)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([weight * self.model(view).float() for weight, view in views(images, self.requested)]).sum(dim=0)


def views(images: Tensor, requested: Views) -> Iterator[tuple[float, Tensor]]:
    """Yield each view of the images with its weight; the weights sum to 1.

    `none` yields the images alone. `mirror` yields the images and their mirror images, with weight 1/2 each. `mirror_translate` yields
    these two views with weight 1/4 each. It also yields both of them shifted by one pixel up and left, and both shifted by one pixel down
    and right, with weight 1/8 each.
    """
    if requested == "none":
        yield 1.0, images
    elif requested == "mirror":
        yield from ((0.5, view) for view in mirrored(images))
    else:
        yield from ((0.25, view) for view in mirrored(images))
        for by in (1, -1):
            yield from ((0.125, view) for view in mirrored(moved(images, by)))


def mirrored(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images and their left-right mirror images."""
    return images, images.flip(2)


def moved(images: Tensor, by: int) -> Tensor:
    """Shift the images by `by` pixels up and left, or down and right if `by` is negative. The border is filled by reflection."""
    height, width = images.shape[1:3]
    return images[:, reflected(height, by, images.device)][:, :, reflected(width, by, images.device)]


def reflected(extent: int, by: int, device: torch.device) -> Tensor:
    """Return indices (extent,) that shift an axis of `extent` pixels by `by`. The pixel at position i takes the value at i + `by`.

    An index i + `by` outside the axis is reflected: -1 becomes 1, and `extent` becomes `extent` - 2.
    """
    places = (torch.arange(extent, device=device) + by).abs()
    return ((extent - 1) - (extent - 1 - places).abs()).clamp(min=0)
