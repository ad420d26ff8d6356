"""Texts and a corpus in memory, and small models of them, for tests of the loop."""

from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.core.prepared import Prepared, Split
from pipeline.core.tokenizer_description import END, NUM_SPECIAL
from tests.specs import bytes_of_gpt2, pair_spec, text_spec

LENGTH, LETTERS, CLASSES = 12, "abcdefgh", ("a", "b", "c")
LSTM: dict[str, Any] = {
    "name": "recurrent",
    "weights": None,
    "cell": "lstm",
    "embedding_width": 6,
    "width": 6,
    "depth": 2,
    "bidirectional": True,
    "pooling": "last",
    "tied_embeddings": False,
    "dropout": 0.2,
}
TRANSFORMER: dict[str, Any] = {
    "name": "transformer",
    "weights": None,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_ratio": 2.0,
    "activation": "swiglu",
    "positions": "learned",
    "pooling": "mean",
    "tied_embeddings": False,
    "dropout": 0.2,
}
NGRAMS: dict[str, Any] = {"name": "ngrams", "weights": None, "width": 8, "max_n": 2, "buckets": 40, "dropout": 0.2}
PREDICTING = {"pooling": None, "tied_embeddings": True}
LSTM_LANGUAGE_MODEL = LSTM | PREDICTING | {"bidirectional": False}
TRANSFORMER_LANGUAGE_MODEL = TRANSFORMER | PREDICTING | {"positions": "rotary", "activation": "gelu"}
ENCODER_DECODER = TRANSFORMER | PREDICTING
UNAUGMENTED = {"augment": None, "loss.label_smoothing": 0.0, "train.metric": "valid/loss"}


def texts() -> Prepared:
    """Return texts of three classes and of every length. Two of three letters of a text are those of its class."""

    def split(samples: int, seed: int) -> Split:
        random = np.random.default_rng(seed)
        targets = np.arange(samples) % len(CLASSES)
        lengths = random.integers(1, LENGTH + 1, samples)
        letters = random.integers(NUM_SPECIAL, NUM_SPECIAL + len(LETTERS), (samples, LENGTH))
        letters = np.where(random.random((samples, LENGTH)) < 2 / 3, NUM_SPECIAL + targets[:, None], letters)
        rows = np.where(np.arange(LENGTH) < lengths[:, None], letters, 0).astype(np.int32)
        return Split(rows, targets.astype(np.int64), lengths)

    spec = text_spec(length=LENGTH, letters=LETTERS, classes=CLASSES)
    return Prepared(spec, "texts", {"train": split(50, 1), "valid": split(20, 2), "test": split(20, 3)})


def corpus() -> Prepared:
    """Return a corpus in which most letters follow the one before them in the alphabet. Rows of valid and test end in padding."""

    def split(rows: int, seed: int, padding: int = 0) -> Split:
        random = np.random.default_rng(seed)
        steps = np.where(random.random(rows * LENGTH) < 0.8, 1, random.integers(0, len(LETTERS), rows * LENGTH))
        tokens = (NUM_SPECIAL + np.cumsum(steps) % len(LETTERS)).astype(np.int32)
        tokens[0] = END
        tokens[len(tokens) - padding :] = 0
        return Split(tokens.reshape(rows, LENGTH), np.zeros((rows, 0), np.uint8), None, windows=True)

    spec = text_spec(length=LENGTH, letters=LETTERS)
    return Prepared(spec, "corpus", {"train": split(50, 1), "valid": split(9, 2, padding=7), "test": split(9, 3, padding=7)})


def pairs() -> Prepared:
    """Return pairs of texts of every length, of which the target is the source backwards."""

    def split(samples: int, seed: int) -> Split:
        random = np.random.default_rng(seed)
        sources, targets = (
            np.zeros((samples, spec.inputs.source.length), np.int32),
            np.zeros((samples, spec.inputs.target.length), np.int32),
        )
        for source, target, length in zip(sources, targets, random.integers(1, LENGTH + 1, samples), strict=True):
            source[:length] = random.integers(NUM_SPECIAL, NUM_SPECIAL + len(LETTERS), length)
            target[: length + 2] = (END, *source[:length][::-1], END)
        return Split.of(spec, spec.inputs.rows(sources, targets), np.zeros((samples, 0), np.uint8))

    spec = pair_spec(length=LENGTH, letters=LETTERS)
    return Prepared(spec, "pairs", {"train": split(50, 1), "valid": split(20, 2), "test": split(20, 3)})


def pretrained_texts() -> Prepared:
    """Return `texts` with the numbers of a pretrained tokenizer: each is lower by one, so padding is -1."""
    return renumbered(texts())


def pretrained_corpus() -> Prepared:
    """Return `corpus` with the numbers of a pretrained tokenizer."""
    return renumbered(corpus())


def renumbered(data: Prepared) -> Prepared:
    spec = data.spec.model_copy(update={"inputs": data.spec.inputs.model_copy(update={"tokenizer": bytes_of_gpt2()})})
    return Prepared(spec, "renumbered", {name: replace(split, inputs=split.inputs - 1, pad=-1) for name, split in data.splits.items()})
