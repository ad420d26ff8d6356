"""Parameters that every source of texts has: the tokenizer, the normalization, and the number of tokens of a row."""

import json
from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from pipeline.inputs.text.description import MOST_TOKENS, NUM_BYTES, NUM_SPECIAL, TOKENIZER_BYTES, Normalization, TokenizerKind
from pipeline.inputs.text.fit import fit
from pipeline.inputs.text.tokenizer import Tokenizer
from pipeline.params.section import Count
from pipeline.params.source import SourceSettings
from pipeline.refusal import Refusal

FEWEST_OF_BPE = NUM_SPECIAL + NUM_BYTES + 1


class TextSettings(SourceSettings):
    """Settings of a source of texts. The tokenizer is fitted to the texts of train alone."""

    inputs: ClassVar[str] = "text"

    tokenizer: TokenizerKind
    """What a token is. `character`: a character; `byte`: a byte of UTF-8; `word`: a word, or a sign such as a comma, without the white space
    around it; `bpe`: frequent sequences of bytes within a word (byte-pair encoding)."""
    vocabulary: Annotated[int, Field(gt=NUM_SPECIAL + 1, le=MOST_TOKENS)] | None
    """Largest number of tokens, the three special tokens (padding, unknown, end of text) included. The most frequent ones are kept. Must be
    null for `byte`."""
    min_count: Count | None
    """How often a character or word, or a pair that `bpe` joins, must occur in train to become a token. Must be null for `byte`."""
    normalization: Annotated[tuple[Normalization, ...], Field(max_length=8)]
    """Changes of the text before it is divided into tokens, in this order; `[]` for none."""
    max_length: Annotated[int, Field(ge=2, le=65_536)]
    """Number of tokens of a row. A longer text is truncated; a corpus is divided into rows of this length."""

    RECOMMENDED: ClassVar = {"tokenizer": "word", "vocabulary": 6000, "min_count": 2, "normalization": [], "max_length": 128}

    @field_validator("vocabulary", "min_count")
    @classmethod
    def fits_the_tokenizer(cls, value: int | None, info: ValidationInfo) -> int | None:
        kind = info.data.get("tokenizer")
        if kind is not None and (value is None) != (kind == "byte"):
            raise ValueError("must be null for the tokenizer `byte`" if kind == "byte" else f"must be a number for the tokenizer `{kind}`")
        if kind == "bpe" and info.field_name == "vocabulary" and value is not None and value < FEWEST_OF_BPE:
            raise ValueError(
                f"must be at least {FEWEST_OF_BPE} for the tokenizer `bpe`: the number includes the 256 bytes and the special tokens"
            )
        return value

    def fit_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Return a tokenizer fitted to `texts`.

        Raises Refusal if fewer than two characters or words are frequent enough. Raises Refusal if the tokenizer takes more than
        TOKENIZER_BYTES as JSON: it is written to `spec.json` and to the header of the model file, whose sizes are limited.
        """
        description = fit(texts, self.tokenizer, normalization=self.normalization, most_tokens=self.vocabulary, min_count=self.min_count)
        content = description.model_dump(mode="json")
        in_record = json.dumps({"spec": {"inputs": {"tokenizer": content}}}, indent=2, ensure_ascii=False)
        in_header = json.dumps(json.dumps(content, ensure_ascii=False), ensure_ascii=False)
        size_bytes = max(len(text.encode()) for text in (in_record, in_header))
        if size_bytes > TOKENIZER_BYTES:
            raise Refusal(
                f"source.vocabulary: the tokenizer of {description.num_tokens} tokens has {size_bytes} bytes as JSON, but at most "
                f"{TOKENIZER_BYTES} are allowed: lower source.vocabulary"
            )
        return Tokenizer(description)
