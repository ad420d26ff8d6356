"""Describes texts as rows of token numbers, with the tokenizer that makes them."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from pipeline.core import spec
from pipeline.core.tokenizer_description import AnyDescription, TokenizerDescription


class TokenInputs(spec.Inputs):
    """Describes rows of token numbers, int32, with the tokenizer that makes them."""

    dtype: ClassVar[type[np.generic]] = np.int32
    if TYPE_CHECKING:  # a field of each subclass, at its own place in the file
        tokenizer: AnyDescription

    @property
    def num_tokens(self) -> int:
        """Return the number of different tokens."""
        return self.tokenizer.num_tokens

    @property
    def pad(self) -> int:
        return self.tokenizer.pad


class TextInputs(TokenInputs):
    """Describes texts as rows of `length` token numbers, int32. The end of a row after a shorter text is filled with `tokenizer.pad`.

    If each target is the next token, there are no separate texts: the rows of a split are consecutive pieces of one long sequence.
    """

    augmented: ClassVar[Literal["tokens"]] = "tokens"

    kind: Literal["text"] = "text"
    length: Annotated[int, Field(ge=1, le=65_536)]
    tokenizer: AnyDescription
    whole_files: bool = Field(default=False, exclude_if=lambda whole: not whole)
    """True if each file was one text. `predict` then reads files in the same way, else line by line."""

    @field_validator("tokenizer")
    @classmethod
    def leaves_room(cls, tokenizer: AnyDescription, info: ValidationInfo) -> AnyDescription:
        if info.data.get("length", 0) <= len(tokenizer.before) + len(tokenizer.after):
            raise ValueError("puts as many tokens around a text as a row has, or more")
        return tokenizer

    @classmethod
    def example(cls) -> Self:
        """Return the description of rows of 64 bytes."""
        return cls(length=64, tokenizer=TokenizerDescription(kind="byte"))

    @property
    def row_shape(self) -> tuple[int]:
        """Return the shape of a stored row: a tuple with the number of tokens."""
        return (self.length,)

    def enlarged_if_other(self, new: spec.Description | None) -> Self | None:
        if isinstance(new, TextInputs) and new.tokenizer == self.tokenizer:
            return None
        tokens = (*self.tokenizer.tokens, "one more")
        return self.model_copy(update={"tokenizer": TokenizerDescription.model_construct(kind="word", vocabulary=tokens)})

    def reads_samples_of(self, other: spec.Inputs) -> bool:
        return isinstance(other, TextInputs) and (self.length, self.tokenizer) == (other.length, other.tokenizer)

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of tokens of each row that are not padding, (n,)."""
        lengths: NDArray[np.int64] = np.count_nonzero(rows != self.pad, axis=1)
        return lengths

    def random_samples(self, count: int) -> NDArray[Any]:
        """Return `count` rows of random tokens, filled with padding after a random length. Every call with the same `count` returns the
        same rows.
        """
        generator, pad = np.random.default_rng(0), self.pad
        tokens = generator.integers(pad + 1, self.num_tokens, (count, self.length))
        lengths = generator.integers(1, self.length + 1, (count, 1))
        return np.where(np.arange(self.length) < lengths, tokens, pad).astype(self.dtype)


Inputs = TextInputs
