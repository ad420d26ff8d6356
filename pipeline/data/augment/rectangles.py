"""A rectangle in each image, anywhere: parts of it may lie outside."""

import numpy as np
import torch
from torch import Tensor

from pipeline.data.augment.augmenter import Table
from pipeline.spec import Spec


def centres(generator: np.random.Generator, spec: Spec, num_samples: int) -> Table:
    """(2, n): down and across."""
    return np.stack([generator.integers(extent, size=num_samples) for extent in (spec.height, spec.width)])


def mask(centre: Tensor, height: Tensor | int, width: Tensor | int, spec: Spec) -> Tensor:
    """(n, height, width): which pixels lie in the rectangles of these sides around the centres (2, n)."""
    down, across = centre
    return inside(down, spec.height, height)[:, :, None] & inside(across, spec.width, width)[:, None, :]


def inside(centre: Tensor, extent: int, side: Tensor | int) -> Tensor:
    """(n, extent): which places lie within `side` around each centre (n,)."""
    first = centre - side // 2
    last = first + side
    places = torch.arange(extent, device=centre.device)[None, :]
    return (places >= first[:, None]) & (places < last[:, None])
