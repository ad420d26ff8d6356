"""Makes one of 14 changes to each image, chosen at random, at a random strength (TrivialAugment, Mueller and Hutter, 2021, in its wide form)."""

from typing import ClassVar, Literal

from torch import Tensor

from pipeline.train.augment import policy
from pipeline.train.transform_params import TransformSettings, Uniform


class Settings(TransformSettings):
    name: Literal["trivial_augment"]

    channels: ClassVar[tuple[int, ...]] = (1, 3)

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        chosen, strength, sign = uniform(3).unbind(1)
        level = (strength * (policy.LEVELS + 1)).floor() / policy.LEVELS
        return policy.changed(images, policy.WIDE, chosen, level, sign)
