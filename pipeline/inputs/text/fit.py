"""Fits a tokenizer to texts: finds its vocabulary or merges. The same texts give the same description, in any process."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.inputs.text.description import (
    BYTE_SIGNS,
    LONGEST_TOKEN,
    MOST_TOKENS,
    NUM_SPECIAL,
    Normalization,
    TokenizerDescription,
    TokenizerKind,
)
from pipeline.inputs.text.normalization import normalize
from pipeline.inputs.text.pieces import pieces, words
from pipeline.inputs.text.tokenizer import BLOCK_CHARACTERS, NUM_CODE_POINTS, code_points
from pipeline.refusal import Refusal

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
    return TokenizerDescription(kind=kind, normalization=normalization, vocabulary=vocabulary)


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
