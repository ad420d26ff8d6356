"""The preprocessing of pairs of texts: none. The network takes the two texts out of the rows of tokens by `TextPairInputs.texts`."""

from torch import Tensor, nn

from pipeline.core.inputs.text_pair import TextPairInputs


class Preprocessing(nn.Module):
    """Returns `rows` (n, pieces, width) int32 unchanged."""

    def __init__(self, inputs: TextPairInputs, *, channels_last: bool) -> None:  # noqa: ARG002  # the interface is that of every kind of inputs
        super().__init__()

    def forward(self, rows: Tensor) -> Tensor:
        return rows
