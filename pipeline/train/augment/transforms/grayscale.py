"""Makes colour images grey."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from pipeline.train.augment.imaging import grey
from pipeline.train.transform_params import Probability, TransformSettings, Uniform


class Settings(TransformSettings):
    name: Literal["grayscale"]
    probability: Probability

    channels: ClassVar[tuple[int, ...]] = (3,)

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        return torch.where((uniform() < self.probability)[:, None, None, None], grey(images), images)
