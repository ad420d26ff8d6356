"""Makes the description of pairs of texts."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.core.tokenizer_description import AnyDescription
from pipeline.inputs.text_pair.description import TextPairInputs


class Statistics:
    """Makes the description of pairs of texts. Nothing is computed from the rows. `tokenizer` is set when it has been fitted to the train
    split, before `inputs` is called.
    """

    dtype: ClassVar[type[np.generic]] = TextPairInputs.dtype

    def __init__(self, length: int, target_length: int, tokenizer: AnyDescription | None = None) -> None:
        self.length, self.target_length, self.tokenizer = length, target_length, tokenizer

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.inputs().row_shape

    def summarize(self, rows: NDArray[Any]) -> None:
        """Return None: the tokens of a text need no statistics."""

    def add(self, summary: None) -> None:
        """Do nothing, for the same reason."""

    def inputs(self) -> TextPairInputs:
        """Return the description of the pairs."""
        assert self.tokenizer is not None
        return TextPairInputs(length=self.length, target_length=self.target_length, tokenizer=self.tokenizer)
