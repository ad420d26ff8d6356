"""The preprocessing of texts: none. The network gets the token numbers, and finds the padding in them by its number, that of `TextInputs.pad`."""

import torch
from torch import Tensor, nn

from pipeline.inputs.text.description import TextInputs


class Preprocessing(nn.Module):
    """Returns `tokens` (n, length) int32 unchanged."""

    def __init__(self, inputs: TextInputs, *, channels_last: bool) -> None:  # noqa: ARG002  # the interface is that of every kind of inputs
        super().__init__()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


def indices(tokens: Tensor, pad: int) -> Tensor:
    """Return `tokens` as indices of a table with a vector for each token. Padding whose number `pad` is negative gets the index 0."""
    return tokens.clamp(min=0) if pad < 0 else tokens


def attended(real: Tensor) -> Tensor:
    """Return the mask (n, 1, 1, length) of the tokens to attend to: those that are `real` (n, length), and no padding.

    Attention to no key at all would be a softmax over nothing, so a text without tokens attends to its first padding.
    """
    return (real | (torch.arange(real.shape[1], device=real.device) == 0))[:, None, None, :]
