"""The quantile loss (Koenker and Bassett, 1978): its minimum is the number below which the target lies with a given probability."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.inference.params import NumberLossSettings


class Settings(NumberLossSettings):
    name: Literal["quantile"]
    quantile: Annotated[float, Field(gt=0, lt=1)]
    """The probability with which a target is below the output; 0.5 for the median."""

    RECOMMENDED: ClassVar = {"quantile": 0.5}

    @property
    def is_measured(self) -> bool:
        return self.quantile == 0.5

    def of_errors(self, errors: Tensor) -> Tensor:
        return torch.maximum(-self.quantile * errors, (1 - self.quantile) * errors)
