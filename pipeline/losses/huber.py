"""The Huber loss (1964): half the squared error up to `delta`, and beyond it a line, so that outliers count little."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pipeline.inference.params import NumberLossSettings


class Settings(NumberLossSettings):
    name: Literal["huber"]
    delta: Annotated[float, Field(gt=0)]
    """The error, in standard deviations of the targets, from which the loss is a line."""

    RECOMMENDED: ClassVar = {"delta": 1.0}

    def of_errors(self, errors: Tensor) -> Tensor:
        return functional.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=self.delta)
