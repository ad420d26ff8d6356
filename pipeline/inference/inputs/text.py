"""The preprocessing of texts: none. The network gets the token numbers, and finds the padding in them by the number PAD."""

from torch import Tensor, nn

from pipeline.core.inputs.text import TextInputs


class Preprocessing(nn.Module):
    """Returns `tokens` (n, length) int32 unchanged."""

    def __init__(self, inputs: TextInputs, *, channels_last: bool) -> None:  # noqa: ARG002  # the interface is that of every kind of inputs
        super().__init__()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens
