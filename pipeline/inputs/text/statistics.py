"""Holds the description of the texts, which is known once the tokenizer is fitted."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.inputs.text.description import TextInputs, TokenizerDescription


class Statistics:
    """Makes the description of texts, which contains `length`, the number of tokens of a row, and `tokenizer`. Nothing is computed from the
    rows. `tokenizer` is set when it has been fitted to the train split, before `inputs` is called.
    """

    dtype: ClassVar[type[np.generic]] = TextInputs.dtype

    def __init__(self, length: int, tokenizer: TokenizerDescription | None = None) -> None:
        self.row_shape = (length,)
        self.tokenizer = tokenizer

    def summarize(self, tokens: NDArray[Any]) -> None:
        """Return None: the tokens of a text need no statistics."""

    def add(self, summary: None) -> None:
        """Do nothing, for the same reason."""

    def inputs(self) -> TextInputs:
        """Return the description of the texts."""
        assert self.tokenizer is not None
        return TextInputs(length=self.row_shape[0], tokenizer=self.tokenizer)
