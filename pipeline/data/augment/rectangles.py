"""Random rectangles in images; parts of a rectangle may be outside the image."""

import numpy as np
import torch
from torch import Tensor

from pipeline.data.augment.protocols import Table
from pipeline.inputs.image.description import ImageInputs


def centres(generator: np.random.Generator, image: ImageInputs, num_samples: int) -> Table:
    """Draw the row and column of one centre in each image, (2, n)."""
    return np.stack([generator.integers(extent, size=num_samples) for extent in (image.height, image.width)])


def mask(centre: Tensor, height: Tensor | int, width: Tensor | int, image: ImageInputs) -> Tensor:
    """Return a mask of the pixels inside one rectangle per image, (n, image height, image width).

    The rectangles have their centres at `centre` (2, n); `height` and `width` are their sides.
    """
    down, across = centre
    return inside(down, image.height, height)[:, :, None] & inside(across, image.width, width)[:, None, :]


def inside(centre: Tensor, extent: int, side: Tensor | int) -> Tensor:
    """Return a mask (n, extent): for each centre (n,), the positions from 0 to `extent` - 1 inside an interval of length `side` around it."""
    first = centre - side // 2
    last = first + side
    places = torch.arange(extent, device=centre.device)[None, :]
    return (places >= first[:, None]) & (places < last[:, None])
