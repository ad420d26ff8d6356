"""Rotates images about their centre by a random angle, with black corners."""

from typing import Literal

from torch import Tensor

from pipeline.train.augment.imaging import signed, warped
from pipeline.train.transform_params import Degrees, TransformSettings, Uniform


class Settings(TransformSettings):
    name: Literal["rotate"]
    degrees: Degrees
    """The largest angle, in both directions."""

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        return warped(images, degrees=self.degrees * signed(uniform()))
