"""Computes what `prepare` stores about texts: the settings of a tokenizer, its fit to the train split, and the lengths of the texts."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from pipeline.core.refusal import Refusal
from pipeline.core.section import Count
from pipeline.core.spec import stored_bytes
from pipeline.core.tokenizer import BLOCK_CHARACTERS, NUM_CODE_POINTS, Tokenizer, code_points, normalize, pieces, words
from pipeline.core.tokenizer_description import (
    BYTE_SIGNS,
    LONGEST_TOKEN,
    MOST_TOKENS,
    NUM_BYTES,
    NUM_SPECIAL,
    PRETRAINED_BYTES,
    TOKENIZER_BYTES,
    AnyDescription,
    Normalization,
    TokenizerDescription,
    TokenizerKind,
)
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.params import SourceSettings
from pipeline.prepare.reading import tokenizer_json


class Statistics:
    """Makes the description of texts or pairs of texts: `describe(tokenizer=...)`. Nothing is computed from the rows. `tokenizer` is set when it
    has been fitted to the train split, before `inputs` is called.
    """

    dtype: ClassVar[type[np.generic]] = TextInputs.dtype

    def __init__(self, describe: Callable[..., Any], tokenizer: AnyDescription | None = None) -> None:
        self.describe, self.tokenizer = describe, tokenizer

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.inputs().row_shape)

    def summarize(self, tokens: NDArray[Any]) -> None:
        """Return None: the tokens of a text need no statistics."""

    def add(self, summary: None) -> None:
        """Do nothing, for the same reason."""

    def inputs(self) -> Any:
        """Return the description of the texts, TextInputs or TextPairInputs."""
        assert self.tokenizer is not None
        return self.describe(tokenizer=self.tokenizer)


PARALLELISM = "TOKENIZERS_PARALLELISM"
SEPARATOR = "\0"


def fit(
    texts: Iterable[str], kind: TokenizerKind, *, normalization: tuple[Normalization, ...], most_tokens: int | None, min_count: int | None
) -> TokenizerDescription:
    """Find the vocabulary or the merges for `texts`, which are read once. Return the description of the tokenizer.

    The tokenizer has at most `most_tokens` tokens, special tokens included. A character or word becomes a token only if it occurs at least
    `min_count` times. For `bpe`, this applies to each pair of tokens to be joined. For `byte`, `most_tokens` and `min_count` are None.
    Raises Refusal if fewer than two characters or words become tokens.
    """
    if kind == "byte":
        return TokenizerDescription(kind=kind, normalization=normalization)
    assert most_tokens is not None
    assert min_count is not None
    normalized = (normalize(text, normalization) for text in texts)
    if kind == "bpe":
        return TokenizerDescription(kind=kind, normalization=normalization, merges=find_merges(normalized, most_tokens, min_count))
    counts = count_characters(normalized) if kind == "character" else Counter(chain.from_iterable(map(words, normalized)))
    frequent = sorted((-count, token) for token, count in counts.items() if count >= min_count and len(token) <= LONGEST_TOKEN)
    vocabulary = tuple(token for _, token in frequent[: most_tokens - NUM_SPECIAL])
    if len(vocabulary) < 2:
        raise Refusal(
            f"source.min_count: only {len(vocabulary)} different {kind}s of at most {LONGEST_TOKEN} characters occur at least {min_count} times "
            "in the train texts, but the tokenizer needs two: lower source.min_count, or use other texts"
        )
    return TokenizerDescription(kind=kind, normalization=normalization, vocabulary=vocabulary, joins_marks=kind == "word")


def count_characters(texts: Iterable[str]) -> dict[str, int]:
    counts: NDArray[np.int64] = np.zeros(NUM_CODE_POINTS, np.int64)
    for text in texts:
        for start in range(0, len(text), BLOCK_CHARACTERS):
            found, times = np.unique(code_points(text[start : start + BLOCK_CHARACTERS]), return_counts=True)
            counts[found] += times
    return {chr(number): int(counts[number]) for number in np.flatnonzero(counts)}


def find_merges(texts: Iterable[str], most_tokens: int, min_count: int) -> tuple[str, ...]:
    """Return the merges of byte-pair encoding for `texts`. They are found by the trainer of the library `tokenizers`.

    The function `pieces` divides each text into pieces, such as a word with the space before it, and no token crosses the border of a
    piece. The trainer gets the pieces joined by SEPARATOR, and splits them there. It thus uses the same pieces as `BpeTokenizer` does
    later.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.CharDelimiterSplit(SEPARATOR), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=most_tokens - NUM_SPECIAL,
        min_frequency=min_count,
        show_progress=False,
        initial_alphabet=list(BYTE_SIGNS),
        max_token_length=LONGEST_TOKEN,
    )
    with one_thread():
        tokenizer.train_from_iterator((SEPARATOR.join(pieces(text)) for text in texts), trainer)
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return tuple(" ".join(pair) for pair in pairs[:MOST_TOKENS])


@contextmanager
def one_thread() -> Iterator[None]:
    """Within this context, the library `tokenizers` starts no threads.

    Its threads would continue after the fitting, and a process with several threads cannot fork safely.
    """
    before = os.environ.get(PARALLELISM)
    os.environ[PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLELISM]
        else:
            os.environ[PARALLELISM] = before


OF_PRETRAINED = ("tokenizer_file", "tokenizer_digest")
UNUSED = {"byte": (*OF_PRETRAINED, "vocabulary", "min_count"), "pretrained": ("vocabulary", "min_count", "normalization")}
"""The keys that a tokenizer does not use; that of all others are OF_PRETRAINED."""
NEED_END = {"language_modeling": "a language model needs between documents", "sequence": "a target text needs at its end"}
FEWEST_OF_BPE = NUM_SPECIAL + NUM_BYTES + 1


class TextSettings(SourceSettings):
    """Settings of a source of texts. The tokenizer is fitted to the texts of train alone."""

    inputs: ClassVar[str] = "text"

    tokenizer: TokenizerKind | Literal["pretrained"]
    """The tokenizer says what a token is. `character`: a character; `byte`: a byte of UTF-8; `word`: a word, or a sign such as a comma, without
    the white space around it; `bpe`: frequent sequences of bytes within a word (byte-pair encoding). `pretrained`: the tokenizer of a
    pretrained model of Hugging Face, which is read from `tokenizer_file`."""
    tokenizer_file: Path | None
    """The `tokenizer.json` of the pretrained model, such as `data/weights/NAME/tokenizer.json`. Null for the other tokenizers."""
    tokenizer_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None
    """The SHA-256 of this file. If it is null or wrong, the error says the value to write. Null for the other tokenizers."""
    vocabulary: Annotated[int, Field(gt=NUM_SPECIAL + 1, le=MOST_TOKENS)] | None
    """Largest number of tokens, the three special tokens (padding, unknown, end of text) included. The most frequent ones are kept. Must be
    null for `byte` and `pretrained`."""
    min_count: Count | None
    """How often a character or word, or a pair that `bpe` joins, must occur in train to become a token. Must be null for `byte` and
    `pretrained`."""
    normalization: Annotated[tuple[Normalization, ...], Field(max_length=8)]
    """Changes of the text before it is divided into tokens, in this order; `[]` for none, and for `pretrained`, which brings its own."""
    max_length: Annotated[int, Field(ge=2, le=65_536)]
    """Number of tokens of a row. A longer text is truncated; a corpus is divided into rows of this length."""

    RECOMMENDED: ClassVar = {
        "tokenizer": "word",
        "tokenizer_file": None,
        "tokenizer_digest": None,
        "vocabulary": 6000,
        "min_count": 2,
        "normalization": [],
        "max_length": 128,
    }
    ADDED: ClassVar = {"tokenizer_file": None, "tokenizer_digest": None}

    @field_validator("tokenizer_file", "tokenizer_digest", "vocabulary", "min_count", "normalization")
    @classmethod
    def fits_the_tokenizer(cls, value: Any, info: ValidationInfo) -> Any:
        kind, name = info.data.get("tokenizer"), info.field_name
        if kind is None:
            return value
        if name in UNUSED.get(kind, OF_PRETRAINED):
            if value:
                raise ValueError(f"must be {'[]' if name == 'normalization' else 'null'} for the tokenizer `{kind}`")
        elif value is None and name != "tokenizer_digest":
            raise ValueError(f"must be {'a path' if name == 'tokenizer_file' else 'a number'} for the tokenizer `{kind}`")
        if kind == "bpe" and name == "vocabulary" and value < FEWEST_OF_BPE:
            raise ValueError(
                f"must be at least {FEWEST_OF_BPE} for the tokenizer `bpe`: the number includes the 256 bytes and the special tokens"
            )
        return value

    def cluster_paths(self) -> tuple[Path, ...]:
        return ()

    def example_inputs(self, example: TextInputs) -> TextInputs:
        letters = TokenizerDescription(kind="character", vocabulary=("a", "b"))
        tokenizer = self.pretrained() if self.tokenizer == "pretrained" else letters
        return example.model_copy(update={"length": self.max_length, "tokenizer": tokenizer})

    def refuse_missing(self) -> None:
        super().refuse_missing()
        if self.tokenizer == "pretrained":
            self.pretrained()

    def pretrained(self) -> AnyDescription:
        """Return the tokenizer in `tokenizer_file`. Raises Refusal if it is unusable for this task or for rows of `max_length` tokens."""
        assert self.tokenizer_file is not None
        description = tokenizer_json.read(self.tokenizer_file, self.tokenizer_digest)
        if description.end is None and self.targets_kind in NEED_END:
            problem = f"has none of the tokens {', '.join(tokenizer_json.ENDS)}, one of which {NEED_END[self.targets_kind]}"
            raise Refusal(f"source.tokenizer_file: {self.tokenizer_file}: {problem}: choose the tokenizer of another model")
        if self.max_length <= (num_around := len(description.before) + len(description.after)):
            raise Refusal(f"source.max_length: the tokenizer puts {num_around} tokens around each text: write at least {num_around + 1}")
        refuse_large(description, PRETRAINED_BYTES, "source.tokenizer_file", "choose the tokenizer of another model")
        return description

    def fit_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Return a tokenizer fitted to `texts` or, for `pretrained`, that of the pretrained model.

        Raises Refusal if fewer than two characters or words are frequent enough, or if the tokenizer is too large.
        """
        if self.tokenizer == "pretrained":
            return Tokenizer(self.pretrained())
        description = fit(texts, self.tokenizer, normalization=self.normalization, most_tokens=self.vocabulary, min_count=self.min_count)
        refuse_large(description, TOKENIZER_BYTES, "source.vocabulary", "lower source.vocabulary")
        return Tokenizer(description)


def refuse_large(description: AnyDescription, most_bytes: int, key: str, remedy: str) -> None:
    """Raise Refusal, with `key` and `remedy`, if the tokenizer takes more than `most_bytes` as JSON: it is written to `spec.json` and to the
    header of the model file, whose sizes are limited.
    """
    size_bytes = stored_bytes(description.model_dump(mode="json"), part="inputs", key="tokenizer")
    if size_bytes > most_bytes:
        problem = f"the tokenizer of {description.num_tokens} tokens has {size_bytes} bytes as JSON, but at most {most_bytes} are allowed"
        raise Refusal(f"{key}: {problem}: {remedy}")
