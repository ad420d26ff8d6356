"""Rotates, moves, scales and shears images at random in one step, with black borders: torchvision's RandomAffine."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from pipeline.train.augment.imaging import signed, warped
from pipeline.train.transform_params import Degrees, TransformSettings, Uniform

Scale = Annotated[float, Field(ge=0.01, le=100)]


class Settings(TransformSettings):
    name: Literal["affine"]
    degrees: Degrees
    """The largest angle, in both directions."""
    translate: Annotated[float, Field(ge=0, le=1)]
    """The largest distance in each direction, as a share of the image's height and width."""
    smallest_scale: Scale
    """The smallest factor of the size of what is in the image."""
    largest_scale: Scale
    """The largest factor of the size."""
    shear: Annotated[float, Field(ge=0, le=60)]
    """The largest angle of shearing along the rows, in degrees."""

    @model_validator(mode="after")
    def refuse_no_scale(self) -> Self:
        if self.smallest_scale > self.largest_scale:
            raise ValueError("smallest_scale is above largest_scale: exchange them")
        return self

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        angle, across, down, scale, shear = uniform(5).unbind(1)
        height, width = images.shape[2:]
        return warped(
            images,
            degrees=-self.degrees * signed(angle),
            scale=(math.log(self.smallest_scale) * (1 - scale) + math.log(self.largest_scale) * scale).exp(),
            shear_x=(signed(shear) * math.radians(self.shear)).tan(),
            move_x=(self.translate * width * signed(across)).round(),
            move_y=(self.translate * height * signed(down)).round(),
        )
