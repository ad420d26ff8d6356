"""The preprocessing of texts: none. The network gets the token numbers, and finds the padding in them by its number, that of `TextInputs.pad`."""

import torch
from torch import Tensor, nn

from pipeline.core.refusal import Refusal
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


def mean(states: Tensor, real: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean (n, features) of the states (n, length, features) of each text, over its tokens.

    `real` (n, length) is True at tokens and False at padding, and `lengths` (n,) are the numbers of tokens. The mean of a text without tokens
    is zeros.
    """
    weights = real.to(states.dtype) / lengths.clamp(min=1)[:, None]
    return (states * weights[..., None]).sum(1)


def refuse_misfit(pooling: str | None, *, one_output: bool, tied: bool = False) -> None:
    """Raise Refusal if the settings of a model do not fit its task, which has one output for each text, or else one for each token."""
    if not one_output and pooling is not None:
        raise Refusal("model.pooling: a language model or decoder has an output for each token and pools nothing: set it to null")
    if one_output and pooling is None:
        raise Refusal("model.pooling: a classifier needs one vector for each text: set it to mean")
    if one_output and tied:
        raise Refusal("model.tied_embeddings: the outputs of a classifier are not tokens: set it to false")


def attended(real: Tensor) -> Tensor:
    """Return the mask (n, 1, 1, length) of the tokens to attend to: those that are `real` (n, length), and no padding.

    Attention to no key at all would be a softmax over nothing, so a text without tokens attends to its first padding.
    """
    return (real | (torch.arange(real.shape[1], device=real.device) == 0))[:, None, None, :]
