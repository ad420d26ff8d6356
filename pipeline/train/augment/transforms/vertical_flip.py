"""Flips images upside down."""

from typing import Literal

import torch
from torch import Tensor

from pipeline.train.transform_params import Probability, TransformSettings, Uniform


class Settings(TransformSettings):
    name: Literal["vertical_flip"]
    probability: Probability

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        return torch.where((uniform() < self.probability)[:, None, None, None], images.flip(2), images)
