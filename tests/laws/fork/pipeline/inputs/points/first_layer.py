"""Scales points to [-1, 1]."""

from pipeline.inputs.points.description import Inputs
from torch import Tensor, nn


class Preprocessing(nn.Module):
    def __init__(self, inputs: Inputs, *, channels_last: bool) -> None:  # points have no channels
        super().__init__()
        self.largest = inputs.largest

    def forward(self, points: Tensor) -> Tensor:
        return points / self.largest
