"""Describes texts as rows of token numbers, with the tokenizer that makes them."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from pipeline import spec

PAD, UNKNOWN, END = 0, 1, 2
"""Token numbers of every tokenizer: padding after the end of a text, a token that is not in the vocabulary, and the end of a text."""
NUM_SPECIAL = 3
NUM_BYTES = 256
MOST_TOKENS = 65_536
LONGEST_TOKEN = 256
"""Upper bound for the number of characters of a token in the vocabulary."""

TokenizerKind = Literal["character", "byte", "word", "bpe"]
Normalization = Literal["nfc", "nfkc", "lowercase", "strip_accents", "collapse_whitespace"]
Token = Annotated[str, Field(min_length=1, max_length=LONGEST_TOKEN)]


class TokenizerDescription(BaseModel):
    """Everything that a tokenizer is built from. No regular expression and no code comes from a file, so a model file of a stranger is safe to open.

    `normalization` lists changes of the text before it is divided into tokens. `vocabulary` has the tokens from number NUM_SPECIAL on;
    for `byte` it is empty, because the tokens are the 256 bytes. `merges` are the pairs of tokens that `bpe` joins, in order of priority.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: TokenizerKind
    normalization: Annotated[tuple[Normalization, ...], Field(max_length=8)] = ()
    vocabulary: Annotated[tuple[Token, ...], Field(max_length=MOST_TOKENS)] = ()
    merges: Annotated[tuple[tuple[Token, Token], ...], Field(max_length=MOST_TOKENS)] = ()

    @field_validator("vocabulary")
    @classmethod
    def has_distinct_tokens(cls, vocabulary: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if bool(vocabulary) == (info.data.get("kind") == "byte"):
            raise ValueError("must be empty for the kind `byte`, and have tokens for every other kind")
        if len(set(vocabulary)) < len(vocabulary):
            raise ValueError("has the same token twice")
        return vocabulary

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, including padding, unknown and end of text."""
        return NUM_SPECIAL + (len(self.vocabulary) or NUM_BYTES)


class TextInputs(spec.Inputs):
    """Describes texts as rows of `length` token numbers, int32. A shorter text is followed by PAD.

    If the targets are the next tokens, the rows of a split are consecutive pieces of one long sequence.
    """

    dtype: ClassVar[type[np.generic]] = np.int32

    kind: Literal["text"] = "text"
    length: Annotated[int, Field(ge=1, le=65_536)]
    tokenizer: TokenizerDescription

    @property
    def row_shape(self) -> tuple[int]:
        """Return the number of tokens of a row."""
        return (self.length,)

    @property
    def num_tokens(self) -> int:
        """Return the number of different tokens."""
        return self.tokenizer.num_tokens

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of tokens of each row that are not padding, (n,)."""
        lengths: NDArray[np.int64] = np.count_nonzero(rows, axis=1)
        return lengths


Inputs = TextInputs
