"""The model from stored inputs to outputs: preprocessing, then the network. Training, evaluation and serving use the same model."""

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from pipeline.engine import precision
from pipeline.registry import INPUTS
from pipeline.spec import Inputs


def preprocessing(inputs: Inputs, *, channels_last: bool) -> nn.Module:
    """Build the preprocessing module for the kind of `inputs`, such as images."""
    return cast("nn.Module", INPUTS.module(inputs.kind, "preprocessing").Preprocessing(inputs, channels_last=channels_last))


class Model(nn.Module):
    """Maps stored inputs, and their mask if they have one, to outputs. For a classification the outputs are logits (n, classes).

    If `half` is True, the preprocessed inputs and the network's weights, except those of BatchNorm, are bf16, and the outputs are
    converted to float32. `channels_last` sets the memory format of the network's weights.
    """

    frozen_norms: Sequence[nn.Module] = ()
    """BatchNorm layers that stay in evaluation mode, also in training: their running statistics stay unchanged."""

    def __init__(self, network: nn.Module, preprocessing: nn.Module, *, half: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        if half:
            precision.halve(network)
        self.half_precision = half
        self.network = network.to(memory_format=torch.channels_last) if channels_last else network
        self.preprocessing = preprocessing

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for norm in self.frozen_norms:
            norm.eval()
        return self

    def forward(self, inputs: Tensor, *mask: Tensor) -> Tensor:
        prepared = self.preprocessing(inputs)
        if self.half_precision:
            return cast("Tensor", self.network(precision.as_half(prepared), *mask).float())
        return cast("Tensor", self.network(prepared, *mask))
