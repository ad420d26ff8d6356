"""Makes a rectangle of random area, shape and place black (random erasing, Zhong et al., 2020)."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.train.transform_params import Probability, TransformSettings, Uniform

SMALLEST, LONGEST = 0.02, 3.3


class Settings(TransformSettings):
    name: Literal["random_erasing"]
    probability: Probability
    area: Annotated[float, Field(ge=SMALLEST, le=1)]
    """The largest area, as a share of the image's area. The smallest is 0.02, and no side is more than 3.3 times the other."""

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        happens, area, ratio, top, left = uniform(5)[:, :, None].unbind(1)
        height, width = images.shape[2:]
        side, stretch = (height * width * (SMALLEST + (self.area - SMALLEST) * area)).sqrt(), ((ratio - 0.5) * math.log(LONGEST)).exp()
        hidden = (happens < self.probability)[:, None, :, None]
        for axis, place, length in ((2, top, side * stretch), (3, left, side / stretch)):
            extent = images.shape[axis]
            sides = length.round().clamp(1, extent)
            first = (place * (extent - sides + 1)).floor()
            pixels = torch.arange(extent, device=images.device)
            inside = (pixels >= first) & (pixels < first + sides)
            hidden = hidden & (inside[:, None, :, None] if axis == 2 else inside[:, None, None, :])
        return images.masked_fill(hidden, 0)
