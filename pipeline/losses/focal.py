"""Focal loss (Lin et al., 2017, https://arxiv.org/abs/1708.02002): cross-entropy in which samples that are predicted well count less."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.inference.params import ClassLossSettings


class Settings(ClassLossSettings):
    name: Literal["focal"]
    gamma: Annotated[float, Field(ge=0, le=100)]
    """The cross-entropy of a target with predicted probability p is multiplied by (1 - p) to this power; 0 for the cross-entropy itself."""

    RECOMMENDED: ClassVar = {"gamma": 2.0}

    def of_classes(self, logits: Tensor) -> Tensor:
        log_probabilities = logits.log_softmax(-1)
        # above 0: where p is 1, the gradient of a power below 1 would be infinite
        missing = (-log_probabilities.expm1()).clamp(min=torch.finfo(logits.dtype).tiny)
        return missing**self.gamma * -log_probabilities
