"""Describes pairs of a source text and a target text as rows of token numbers, with the tokenizer that makes both."""

from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from pipeline.core import spec
from pipeline.core.tokenizer_description import AnyDescription, TokenizerDescription
from pipeline.inputs.text.description import TextInputs, TokenInputs

NUM_PIECES = 8
"""The number of pieces of a row. Batches are cut to their first pieces, and so to at most as many different lengths."""
Tokens = TypeVar("Tokens", bound=Any)
"""An array or a tensor of token numbers."""


class TextPairInputs(TokenInputs):
    """Describes pairs of texts as rows (NUM_PIECES, width) of token numbers, int32.

    A piece of a row has an eighth of the source text, and after it an eighth of the target text, each rounded up. So the padding at the end
    of both texts of a batch is cut off at once, with its last pieces. The source text has at most `length` tokens. The target text has at
    most `target_length`, with `tokenizer.end` before and after it: before it as the first input of the decoder, and after it as the last
    token to predict.
    """

    kind: Literal["text_pair"] = "text_pair"
    length: Annotated[int, Field(ge=1, le=65_536)]
    target_length: Annotated[int, Field(ge=3, le=65_536)]
    tokenizer: AnyDescription

    @field_validator("tokenizer")
    @classmethod
    def has_an_end(cls, tokenizer: AnyDescription) -> AnyDescription:
        if tokenizer.end is None:
            raise ValueError("has no token that ends a text")
        return tokenizer

    @classmethod
    def example(cls) -> Self:
        """Return the description of pairs of texts of 64 bytes."""
        return cls(length=64, target_length=64, tokenizer=TokenizerDescription(kind="byte"))

    @property
    def widths(self) -> tuple[int, int]:
        """Return the number of tokens of a piece that belong to the source text, and of those that belong to the target text."""
        return -(-self.length // NUM_PIECES), -(-self.target_length // NUM_PIECES)

    @property
    def row_shape(self) -> tuple[int, int]:
        return NUM_PIECES, sum(self.widths)

    @property
    def source(self) -> TextInputs:
        """Return the description of the source texts in a row, with the padding up to NUM_PIECES equal pieces."""
        return TextInputs(length=NUM_PIECES * self.widths[0], tokenizer=self.tokenizer)

    @property
    def target(self) -> TextInputs:
        """Return the description of the target texts in a row, in the same way."""
        return TextInputs(length=NUM_PIECES * self.widths[1], tokenizer=self.tokenizer)

    def rows(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the rows of source texts (n, source.length) and target texts (n, target.length). `texts` is the inverse."""
        return np.concatenate([each.reshape(len(each), NUM_PIECES, -1) for each in (sources, targets)], axis=2)

    def texts(self, rows: Tokens) -> tuple[Tokens, Tokens]:
        """Return the source texts and the target texts (n, length) of rows (n, pieces, width). They may have been cut to their first pieces."""
        width, num_rows = self.widths[0], rows.shape[0]
        return rows[:, :, :width].reshape(num_rows, -1), rows[:, :, width:].reshape(num_rows, -1)

    def target_tokens(self, rows: Tokens) -> Tokens:
        return self.texts(rows)[1]

    def num_targets(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of tokens to predict in the target text of each row, (n,): all but the first one."""
        return self.target.lengths(self.texts(rows)[1]) - 1

    def enlarged_if_other(self, new: spec.Description | None) -> Self | None:
        other = isinstance(new, TextPairInputs) and self.source.enlarged_if_other(new.source)
        return self.model_copy(update={"tokenizer": other.tokenizer}) if other else None

    def reads_samples_of(self, other: spec.Inputs) -> bool:
        return isinstance(other, TextPairInputs) and self == other.model_copy(update={"column": self.column})

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of pieces of each row that are not all padding, (n,)."""
        lengths: NDArray[np.int64] = np.count_nonzero((rows != self.pad).any(axis=2), axis=1)
        return lengths

    def random_samples(self, count: int) -> NDArray[Any]:
        """Return `count` rows of random texts. Every call with the same `count` returns the same rows."""
        targets = self.target.random_samples(count)
        targets[:, :2] = self.tokenizer.end  # one token to predict at least
        return self.rows(self.source.random_samples(count), targets)


Inputs = TextPairInputs
