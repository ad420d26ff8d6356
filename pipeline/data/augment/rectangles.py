"""Random rectangles in images; parts of a rectangle may be outside the image."""

import numpy as np
import torch
from torch import Tensor

from pipeline.data.augment.protocols import Table
from pipeline.inputs.image.description import ImageInputs


def centres(generator: np.random.Generator, image: ImageInputs, num_samples: int) -> Table:
    """Draw one random pixel in each image as the centre of a rectangle. Return the rows and columns (2, num_samples)."""
    return np.stack([generator.integers(extent, size=num_samples) for extent in (image.height, image.width)])


def mask(centre: Tensor, height: Tensor | int, width: Tensor | int, image: ImageInputs) -> Tensor:
    """Return a mask (n, image height, image width) that is True inside one rectangle per image.

    The rectangles have the centres `centre` (2, n) and the sides `height` and `width`.
    """
    down, across = centre
    return inside(down, image.height, height)[:, :, None] & inside(across, image.width, width)[:, None, :]


def inside(centre: Tensor, extent: int, side: Tensor | int) -> Tensor:
    """Return a mask (n, extent) that is True inside an interval of length `side` around each of n centres.

    Along the second dimension are the positions 0 to `extent` - 1, and `centre` (n,) contains such positions.
    """
    first = centre - side // 2
    last = first + side
    places = torch.arange(extent, device=centre.device)[None, :]
    return (places >= first[:, None]) & (places < last[:, None])
