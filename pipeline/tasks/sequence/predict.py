"""Turns the tokens that a model writes into texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.untrusted import shown, storable
from pipeline.evaluate.generation import decode
from pipeline.inputs.text_pair.description import TextPairInputs


@dataclass(frozen=True)
class Prediction:
    """The text that a model has written for one input."""

    input: str
    text: str

    def record(self) -> dict[str, Any]:
        """Return the prediction for a line of JSON."""
        return {"input": self.input, "text": self.text}

    def cells(self) -> dict[str, str]:
        """Return the prediction for a row of a table on the terminal."""
        return {"input": shown(self.input), "text": shown(self.text)}


def write(network: nn.Module, sources: Tensor, inputs: TextPairInputs, *, beam: int) -> NDArray[np.int64]:
    """Return the tokens (n, length) of the text that a model writes for each of `sources`, filled with the token that ends a text."""
    written = decode(network.eval(), sources, inputs, beam=beam)
    return np.array(list(zip_longest(*written, fillvalue=inputs.tokenizer.end)), np.int64).reshape(-1, len(sources)).T


class Predictor:
    """Makes predictions from the tokens that `write` returns."""

    def __init__(self, spec: Spec, *, top_k: int) -> None:  # noqa: ARG002  # for classes
        assert isinstance(spec.inputs, TextPairInputs)
        self.tokenizer = Tokenizer(spec.inputs.tokenizer)

    def predictions(self, names: Sequence[str], outputs: NDArray[np.int64]) -> Iterator[Prediction]:
        """Yield the prediction for each input. `outputs` (n, length) are the tokens of the texts, filled with special tokens."""
        for name, tokens in zip(names, outputs, strict=True):
            yield Prediction(name, self.tokenizer.decode(tokens))

    def columns(self, outputs: NDArray[np.int64]) -> dict[str, Any]:
        """Return the column of a file."""
        return {"text": [storable(self.tokenizer.decode(tokens)) for tokens in outputs]}
