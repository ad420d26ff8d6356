"""Makes several of 14 changes to each image, one after the other, chosen at random (RandAugment, Cubuk et al., 2020)."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.train.augment import policy
from pipeline.train.transform_params import TransformSettings, Uniform


class Settings(TransformSettings):
    name: Literal["rand_augment"]
    num_changes: Annotated[int, Field(ge=1, le=10)]
    """The number of changes of an image."""
    magnitude: Annotated[int, Field(ge=0, le=policy.LEVELS)]
    """The strength of the changes, from 0 to 30."""

    channels: ClassVar[tuple[int, ...]] = (1, 3)

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        for _ in range(self.num_changes):
            chosen, sign = uniform(2).unbind(1)
            level = torch.full_like(chosen, self.magnitude / policy.LEVELS)
            images = policy.changed(images, policy.NARROW, chosen, level, sign)
        return images
