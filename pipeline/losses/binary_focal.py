"""Focal loss of each label (Lin et al., 2017, https://arxiv.org/abs/1708.02002): binary cross-entropy in which labels that are predicted well count less."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pipeline.inference.params import LabelLossSettings


class Settings(LabelLossSettings):
    name: Literal["binary_focal"]
    gamma: Annotated[float, Field(ge=0, le=100)]
    """The binary cross-entropy of a label whose actual state is predicted with the probability p is multiplied by (1 - p) to this power; 0 for the
    binary cross-entropy itself."""

    RECOMMENDED: ClassVar = {"gamma": 2.0}

    def of_present(self, logits: Tensor) -> Tensor:
        # above 0: where p is 1, the gradient of a power below 1 would be infinite
        missing = torch.sigmoid(-logits).clamp(min=torch.finfo(logits.dtype).tiny)
        return missing**self.gamma * -functional.logsigmoid(logits)
