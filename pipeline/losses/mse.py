"""The squared error: its minimum is the mean of what is possible, so single outliers count much."""

from typing import Literal

from torch import Tensor

from pipeline.inference.params import NumberLossSettings


class Settings(NumberLossSettings):
    name: Literal["mse"]

    def of_errors(self, errors: Tensor) -> Tensor:
        return errors.square()
