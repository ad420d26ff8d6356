"""The complete model: preprocessing of the stored inputs, then the network. Training, evaluation and serving use the same model."""

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from pipeline.engine import precision
from pipeline.registry import INPUTS
from pipeline.spec import Inputs


def preprocessing(inputs: Inputs, *, channels_last: bool) -> nn.Module:
    """Build the preprocessing module for the kind of `inputs`, such as images.

    `channels_last` sets the memory format of the preprocessed inputs.
    """
    return cast("nn.Module", INPUTS.module(inputs.kind, "preprocessing").Preprocessing(inputs, channels_last=channels_last))


class Model(nn.Module):
    """Preprocesses stored inputs, and maps them to outputs. In classification, the outputs are logits (n, classes).

    Stored inputs are the inputs in the prepared data, for example uint8 images.

    If `bf16_weights` is True, the network runs in bf16: its inputs are converted to bf16, and so are its weights, except those of
    BatchNorm. The outputs are converted back to float32. `channels_last` sets the memory format of the network's weights.
    """

    frozen_norms: Sequence[nn.Module] = ()
    """BatchNorm layers that stay in evaluation mode, also in training: their running statistics stay unchanged."""

    def __init__(self, network: nn.Module, preprocessing: nn.Module, *, bf16_weights: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        if bf16_weights:
            precision.to_bf16(network)
        self.bf16_weights = bf16_weights
        self.network = network.to(memory_format=torch.channels_last) if channels_last else network
        self.preprocessing = preprocessing

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for norm in self.frozen_norms:
            norm.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        prepared = self.preprocessing(inputs)
        if self.bf16_weights:
            return cast("Tensor", self.network(precision.as_bf16(prepared)).float())
        return cast("Tensor", self.network(prepared))
