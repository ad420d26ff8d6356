"""Pairs of a source text and a target text, as rows of the tokens of both."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core.raw_dataset import TRAIN, RawDataset, SampleBlock
from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer, Tokens
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text_pair.description import TextPairInputs
from pipeline.prepare.inputs import tokens
from pipeline.prepare.inputs.text import Statistics, TextSettings
from pipeline.prepare.inputs.tokens import MANY_TEXTS, spread
from pipeline.prepare.params import Duplicates
from pipeline.tasks.sequence.targets import SequenceTargets

BLOCK_PAIRS = 4096
ENDS = 2
"""The tokens before and after a target text."""


class Pairs(NamedTuple):
    """Some source texts of one split, at most BLOCK_PAIRS, with the target texts that a model should write for them.

    `positions` (n,) are those in the split, and `places` say where the pairs were found.
    """

    split: str
    positions: NDArray[np.int64]
    texts: Sequence[str]
    targets: Sequence[str]
    places: Sequence[str]


ReadPairs = Callable[[], Iterable[Pairs]]
"""Reads the pairs of all splits, from the beginning at each call."""


class PairSettings(TextSettings):
    """Settings of a source of pairs of texts. One tokenizer is fitted to all texts of train: the source texts and the target texts."""

    inputs: ClassVar[str] = "text_pair"
    TASK: ClassVar[str] = "sequence"

    duplicates: Duplicates
    max_length: Annotated[int, Field(ge=2, le=65_536)]
    """Number of tokens of a source text. A longer one is truncated."""
    target_length: Annotated[int, Field(ge=1 + ENDS, le=65_536)]
    """Number of tokens of a target text, with the token before it and the one that ends it. A longer one is truncated, and then has no end."""

    RECOMMENDED: ClassVar = {"duplicates": "together", "tokenizer": "bpe", "vocabulary": 4000, "max_length": 128, "target_length": 128}

    def example_inputs(self, example: TextPairInputs) -> TextPairInputs:  # type: ignore[override]  # of another kind of inputs
        tokenizer = super().example_inputs(TextInputs.example()).tokenizer
        return example.model_copy(update={"length": self.max_length, "target_length": self.target_length, "tokenizer": tokenizer})

    def dataset(
        self,
        read: ReadPairs,
        counts: Mapping[str, int],
        keys: Callable[[], Mapping[str, Sequence[str]]] | None = None,
        notes: Sequence[str] = (),
        *,
        workers: int = 1,
    ) -> RawDataset:
        """Return the dataset of pairs. `counts` has their number in each split. Equal source texts are duplicates. For `keys`, see RawDataset.

        `workers` processes tokenize MANY_TEXTS.
        """
        rows = PairRows(self, read, counts, workers)
        return RawDataset(
            SequenceTargets(),
            rows.statistics,
            {split: np.zeros((count, 0), SequenceTargets.dtype) for split, count in counts.items()},
            rows.blocks,
            rows.fit,
            drawing_keys=rows.of_train,
            together=self.duplicates == "together",
            sample_keys=keys,
            notes=tuple(notes),
        )


class PairRows:
    """Turns pairs of texts into rows of tokens. `fit` must be called before `blocks`: it fits the tokenizer."""

    def __init__(self, settings: PairSettings, read: ReadPairs, counts: Mapping[str, int], workers: int) -> None:
        self.settings, self.read, self.counts = settings, read, counts
        self.workers = workers if 2 * sum(counts.values()) >= MANY_TEXTS else 1
        self.statistics = Statistics(partial(TextPairInputs, length=settings.max_length, target_length=settings.target_length))

    def of_train(self) -> Generator[bytes]:
        for pairs in self.read():
            if pairs.split == TRAIN:
                yield from (text.encode("utf-8", "surrogatepass") for text in pairs.texts)

    def fit(self, assigned: Mapping[str, NDArray[np.str_]]) -> None:
        """Fit the tokenizer to the pairs that are assigned to train. Print a warning if it does not suit those of valid, or else of test."""
        counts = Counter({name: 2 * count for name, count in Counter(str(each) for splits in assigned.values() for each in splits).items()})
        texts = (
            (text, split)
            for pairs in self.read()
            for *both, split in zip(pairs.texts, pairs.targets, assigned[pairs.split][pairs.positions].tolist(), strict=True)
            for text in both
        )
        self.tokenizer = tokens.fitted(self.settings, texts, counts)
        self.statistics.tokenizer = self.tokenizer.description

    def blocks(self) -> Generator[SampleBlock]:
        """Yield all pairs, block by block. At the end, print how many texts were truncated, if any were.

        Raises Refusal if the tokenizer finds no token in a text.
        """
        inputs, truncated = self.statistics.inputs(), {"max_length": 0, "target_length": 0}
        rows_of = partial(rows_of_pairs, self.tokenizer, inputs, self.settings.max_length)
        read = ((pairs, (pairs.texts, pairs.targets)) for pairs in self.read())
        for pairs, (rows, lengths, target_lengths) in spread(rows_of, read, workers=self.workers):
            empty = np.flatnonzero((lengths == 0) | (target_lengths == ENDS))
            if len(empty):
                problem = "has a text in which the tokenizer finds no token: change or remove the pair"
                raise Refusal(f"source.root: {pairs.places[empty[0]]}: {problem}")
            truncated["max_length"] += int((lengths > self.settings.max_length).sum())
            truncated["target_length"] += int((target_lengths > self.settings.target_length).sum())
            yield SampleBlock(pairs.split, pairs.positions, rows)
        for (key, number), kind in zip(truncated.items(), ("source", "target"), strict=True):
            if number:
                most, total = getattr(self.settings, key), sum(self.counts.values())
                print(f"prepare: {number} of {total} {kind} texts have more than {most} tokens (source.{key}) and were truncated")


def rows_of_pairs(
    tokenizer: Tokenizer, inputs: TextPairInputs, max_length: int, pairs: tuple[Sequence[str], Sequence[str]]
) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of source texts and target texts, and the number of tokens of each source text and, with its ENDS, of each target text, (n,)."""
    assert tokenizer.description.end is not None
    texts, targets = pairs
    sources, lengths = tokenizer.rows(texts, max_length)
    end = np.array([tokenizer.description.end], np.int32)
    target_rows = np.full((len(targets), inputs.target.length), inputs.pad, np.int32)
    encoded = [np.concatenate((end, found, end)) for found in tokenizer.encode_all(targets)]
    for row, found in zip(target_rows, encoded, strict=True):
        kept = found[: inputs.target_length]
        row[: len(kept)] = kept
    padding = ((0, 0), (0, inputs.source.length - max_length))
    rows = inputs.rows(np.pad(sources, padding, constant_values=inputs.pad), target_rows)
    return rows, lengths, np.array([len(found) for found in encoded], np.int64)
