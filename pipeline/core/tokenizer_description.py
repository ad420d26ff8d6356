"""Describes tokenizers as data: one that was fitted to texts, and that of a pretrained model of Hugging Face."""

import re
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationInfo, field_validator, model_validator

PAD, UNKNOWN, END = 0, 1, 2
"""Token numbers of each tokenizer that is fitted to texts: padding after the end of a text, a token that is not in the vocabulary, and the
end of a text."""
NUM_SPECIAL = 3
NUM_BYTES = 256
MOST_TOKENS = 65_536
LONGEST_TOKEN = 256
"""Upper bound for the number of characters of a token; for `bpe`, of its bytes."""
TOKENIZER_BYTES = 2**23
"""Upper bound for a description as JSON, enough for MOST_TOKENS words of usual length. The file that holds it may have spec.MOST_BYTES."""

TokenizerKind = Literal["character", "byte", "word", "bpe"]
Normalization = Literal["nfc", "nfkc", "lowercase", "strip_accents", "collapse_whitespace"]
Token = Annotated[str, Field(min_length=1, max_length=LONGEST_TOKEN)]
Merge = Annotated[str, Field(min_length=3, max_length=LONGEST_TOKEN + 1)]


def byte_signs() -> str:
    """Return a string of 256 printable characters. The character at index i stands for the byte i where a token is written as text.

    As in GPT-2, a byte whose Latin-1 character is printable is written as this character. The other bytes are written as the characters
    from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTE_SIGNS = byte_signs()
"""The character at index i stands for the byte i where a token is written as text."""
MOST_PRETRAINED_TOKENS, MOST_MERGES, MOST_ADDED = 262_144, 524_288, 16_384
MOST_ADDED_CHARACTERS = 2**18
"""Upper bound for the added tokens together: the library needs three seconds for as many characters."""
LONGEST_PRETRAINED_TOKEN = 1024
"""Upper bound for the number of characters of a token."""
PRETRAINED_BYTES = 2**25
"""Upper bound for a description as JSON. Those of Llama 3 and Qwen 3 have a third of it."""
LONGEST_WORD = 100
"""A longer word is unknown to `wordpiece`: the value of BERT."""
CONTINUED = "##"
"""The beginning of a token of `wordpiece` that continues a word."""

PATTERNS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""The regular expressions of known pre-tokenizers. All of them take linear time. A description names one, and cannot have another."""
BERT_OPTIONS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
"""The steps of BERT's normalizer, in their order. A description has each with the prefix `bert_`."""
NORMALIZERS = {"nfc": "NFC", "nfd": "NFD", "nfkc": "NFKC", "nfkd": "NFKD", "lowercase": "Lowercase", "strip_accents": "StripAccents"}
"""Maps other normalizations to the classes of the library."""

PretrainedNormalization = Annotated[str, Field(pattern=f"^(bert_({'|'.join(BERT_OPTIONS)})|{'|'.join(NORMALIZERS)})$")]
PretrainedToken = Annotated[str, Field(min_length=1, max_length=LONGEST_PRETRAINED_TOKEN)]
PretrainedMerge = Annotated[str, Field(min_length=3, max_length=LONGEST_PRETRAINED_TOKEN + 1)]
Number = Annotated[int, Field(ge=0, lt=MOST_PRETRAINED_TOKENS)]


class AddedToken(BaseModel):
    """A token that is found in the text before the text is divided into words.

    If `special`, it is no text: it is left out when tokens are decoded. `normalized` tokens are found in the normalized text. `lstrip` and
    `rstrip` tokens include the white space before and after them. A `single_word` token is not found inside a word.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: Number
    content: PretrainedToken
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


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
    joins_marks: Annotated[bool, Field(exclude_if=lambda joins: not joins)] = False
    """The kind `word` counts marks and joiners after a letter to its word. False for those fitted by version 0.1, which set them apart."""

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


class PretrainedDescription(BaseModel):
    """Everything that the tokenizer of a pretrained model is built from.

    Like TokenizerDescription, a description has no code and no regular expressions. `vocabulary` has the tokens of the model `wordpiece`
    or `byte_level_bpe` in the order of the token numbers; bytes are written as in BYTE_SIGNS. `added` tokens that are not in this vocabulary
    have the numbers after it. A merge is two tokens with a space between them. `unknown` and `end` are the numbers of these special tokens,
    None if there is none. `before` and `after` are put around a text that is to be classified.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pad: ClassVar[int] = -1
    """The number of padding. It is outside the vocabulary, so padding is never a token, whichever token the pretrained model was padded with."""

    kind: Literal["wordpiece", "byte_level_bpe"]
    normalization: Annotated[tuple[PretrainedNormalization, ...], FailFast(), Field(max_length=8)]
    pre_tokenizer: Literal["bert", "gpt2", "gpt2_digits", "llama3", "qwen2"]
    """How a text is divided into words. `gpt2_digits` is that of `gpt2` after each digit was set apart."""
    add_prefix_space: bool
    """Put a space before each text that `gpt2` divides, unless it begins with one."""
    ignore_merges: bool
    """A word that is a token becomes this token, even if no merges lead to it."""
    unknown: Number | None
    end: Number | None
    before: Annotated[tuple[Number, ...], Field(max_length=8)]
    after: Annotated[tuple[Number, ...], Field(max_length=8)]
    added: Annotated[tuple[AddedToken, ...], FailFast(), Field(max_length=MOST_ADDED)]
    vocabulary: Annotated[tuple[PretrainedToken, ...], FailFast(), Field(min_length=1, max_length=MOST_PRETRAINED_TOKENS)]
    merges: Annotated[tuple[PretrainedMerge, ...], FailFast(), Field(max_length=MOST_MERGES)]

    @model_validator(mode="after")
    def refuse_unusable_numbers(self) -> Self:
        tokens, numbers = self.tokens, {token.number for token in self.added}
        if len(set(tokens)) < len(tokens) or len(numbers) < len(self.added):
            raise ValueError("has the same token twice")
        outside = sorted(number for number in numbers if number >= len(self.vocabulary))
        if outside != list(range(len(self.vocabulary), len(tokens))) or any(tokens[token.number] != token.content for token in self.added):
            raise ValueError("has an added token whose number belongs to another token, or is not the next one after the vocabulary")
        if sum(len(token.content) for token in self.added) > MOST_ADDED_CHARACTERS:
            raise ValueError(f"has added tokens of more than {MOST_ADDED_CHARACTERS} characters in total")
        if len(tokens) > MOST_PRETRAINED_TOKENS or max(self.unknown or 0, self.end or 0, *self.before, *self.after) >= len(tokens):
            raise ValueError(f"has more than {MOST_PRETRAINED_TOKENS} tokens, or the number of a token that does not exist")
        return self

    @model_validator(mode="after")
    def refuse_unfit_parts(self) -> Self:
        """Raise ValueError if the model of the library cannot be built from the parts, or would leave out a part of a text."""
        if self.kind == "wordpiece":
            if self.merges or self.pre_tokenizer != "bert" or self.unknown is None or self.unknown >= len(self.vocabulary):
                raise ValueError("`wordpiece` has no merges, the pre-tokenizer `bert` and an unknown token of the vocabulary")
            return self
        known = set(self.vocabulary)
        if self.pre_tokenizer == "bert" or not known.issuperset(BYTE_SIGNS):
            raise ValueError("`byte_level_bpe` needs a token for each of the 256 bytes, and another pre-tokenizer than `bert`")
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if left not in known or right not in known or left + right not in known:
                raise ValueError("has a merge of tokens that are not in the vocabulary")
        return self

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Return all tokens, those that are added included, in the order of their numbers."""
        outside = sorted((token.number, token.content) for token in self.added if token.number >= len(self.vocabulary))
        return (*self.vocabulary, *(content for _, content in outside))

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    @property
    def cuttable(self) -> bool:
        """Return True if no added token can lie across a place between a word and white space, or take in the white space there."""
        return not any(token.single_word or re.search(r"\A\w|\w\Z|\w\s|\s\w", token.content) for token in self.added)


AnyDescription = Annotated[TokenizerDescription | PretrainedDescription, Field(discriminator="kind")]
