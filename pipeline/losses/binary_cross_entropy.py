"""The binary cross-entropy of each label: the usual loss of samples with several labels."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from pipeline.inference.params import LabelLossSettings


class Settings(LabelLossSettings):
    name: Literal["binary_cross_entropy"]

    def of_present(self, logits: Tensor) -> Tensor:
        return -functional.logsigmoid(logits)
