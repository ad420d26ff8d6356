"""The absolute error: its minimum is the median of what is possible, so outliers count little."""

from typing import Literal

from torch import Tensor

from pipeline.inference.params import NumberLossSettings


class Settings(NumberLossSettings):
    name: Literal["mae"]

    def of_errors(self, errors: Tensor) -> Tensor:
        return errors.abs()
