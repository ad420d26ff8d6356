"""Squared error."""

from typing import Literal

import numpy as np
from torch import Tensor

from pipeline.core.spec import Targets
from pipeline.inference.params import LossSettings


class Settings(LossSettings):
    name: Literal["squared"]

    @classmethod
    def fits(cls, targets: type[Targets] | Targets) -> bool:
        return np.issubdtype(targets.dtype, np.floating)

    def summed(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        return (outputs - targets).square().sum()

    def of_guessing(self, num_outputs: int) -> float:
        return 1.0
