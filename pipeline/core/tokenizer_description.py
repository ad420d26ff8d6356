"""Describes a tokenizer that was fitted to texts: its kind, and its vocabulary or merges."""

from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationInfo, field_validator

from pipeline.core.pretrained_tokenizer import AddedToken, PretrainedDescription, byte_signs

PAD, UNKNOWN, END = 0, 1, 2
"""Token numbers of each tokenizer that is fitted to texts: padding after the end of a text, a token that is not in the vocabulary, and the
end of a text."""
NUM_SPECIAL = 3
NUM_BYTES = 256
MOST_TOKENS = 65_536
LONGEST_TOKEN = 256
"""Upper bound for the number of characters of a token; for `bpe`, of its bytes."""
TOKENIZER_BYTES = 2**20
"""Upper bound for a description as JSON, enough for a `bpe` of 32,768 tokens. The file that holds it may have spec.MOST_BYTES."""

TokenizerKind = Literal["character", "byte", "word", "bpe"]
Normalization = Literal["nfc", "nfkc", "lowercase", "strip_accents", "collapse_whitespace"]
Token = Annotated[str, Field(min_length=1, max_length=LONGEST_TOKEN)]
Merge = Annotated[str, Field(min_length=3, max_length=LONGEST_TOKEN + 1)]


BYTE_SIGNS = byte_signs()
"""The character at index i stands for the byte i where a token is written as text."""


class TokenizerDescription(BaseModel):
    """Everything that a tokenizer is built from which was fitted to texts.

    A description has no code and no regular expressions, so a model file of a stranger is safe to open.

    `normalization` lists changes of the text, in order, that come before it is divided into tokens. The token numbers below NUM_SPECIAL are
    special, such as padding. The next numbers belong to the characters or words in `vocabulary`. For `byte` and `bpe`, `vocabulary` is
    empty: the next numbers belong to the 256 bytes and, for `bpe`, then to the tokens made by the merges. `merges` lists the pairs of
    tokens that `bpe` joins; earlier pairs have priority. A pair is one string: two tokens with a space between them, their bytes written as
    in BYTE_SIGNS.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pad: ClassVar[int] = PAD
    unknown: ClassVar[int] = UNKNOWN
    end: ClassVar[int] = END
    before: ClassVar[tuple[int, ...]] = ()
    after: ClassVar[tuple[int, ...]] = ()
    added: ClassVar[tuple[AddedToken, ...]] = ()

    kind: TokenizerKind
    normalization: Annotated[tuple[Normalization, ...], FailFast(), Field(max_length=8)] = ()
    vocabulary: Annotated[tuple[Token, ...], FailFast(), Field(max_length=MOST_TOKENS)] = ()
    merges: Annotated[tuple[Merge, ...], FailFast(), Field(max_length=MOST_TOKENS)] = ()

    @field_validator("vocabulary")
    @classmethod
    def fits_the_kind(cls, vocabulary: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        kind = info.data.get("kind")
        if bool(vocabulary) != (kind in ("character", "word")):
            raise ValueError("must have tokens for the kinds `character` and `word`, and must be empty for `byte` and `bpe`")
        if len(set(vocabulary)) < len(vocabulary):
            raise ValueError("has the same token twice")
        if kind == "character" and max(map(len, vocabulary)) > 1:
            raise ValueError("has a token of more than one character, but the kind is `character`")
        return vocabulary

    @field_validator("merges")
    @classmethod
    def join_known_tokens(cls, merges: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if merges and info.data.get("kind") != "bpe":
            raise ValueError("must be empty, unless the kind is `bpe`")
        known = set(BYTE_SIGNS)
        for merge in merges:
            left, _, right = merge.partition(" ")
            if left not in known or right not in known:
                raise ValueError("has a merge of a token that is neither a byte nor the result of an earlier merge")
            known.add(left + right)
        if len(set(merges)) < len(merges):
            raise ValueError("has the same pair twice")
        return merges

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Return all tokens except the special ones. The token at index i has the number NUM_SPECIAL + i.

        Tokens of `byte` and `bpe` are written with one character of BYTE_SIGNS for each byte.
        """
        if self.vocabulary:
            return self.vocabulary
        return tuple(dict.fromkeys((*BYTE_SIGNS, *(merge.replace(" ", "") for merge in self.merges))))  # two pairs may make one token

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, including padding, unknown and end of text."""
        return NUM_SPECIAL + len(self.tokens)


AnyDescription = Annotated[TokenizerDescription | PretrainedDescription, Field(discriminator="kind")]
