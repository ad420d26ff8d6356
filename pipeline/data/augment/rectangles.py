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
    """Return a mask (n, height, width) of the pixels inside rectangles of the given sides around the centres (2, n)."""
    down, across = centre
    return inside(down, image.height, height)[:, :, None] & inside(across, image.width, width)[:, None, :]


def inside(centre: Tensor, extent: int, side: Tensor | int) -> Tensor:
    """Return a mask (n, extent) of the positions inside an interval of length `side` around each centre (n,)."""
    first = centre - side // 2
    last = first + side
    places = torch.arange(extent, device=centre.device)[None, :]
    return (places >= first[:, None]) & (places < last[:, None])
