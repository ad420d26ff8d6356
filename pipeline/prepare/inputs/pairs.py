"""Pairs of a source text and a target text, as rows of the tokens of both."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core.raw_dataset import RawDataset
from pipeline.core.tokenizer import Tokenizer, Tokens
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text_pair.description import TextPairInputs
from pipeline.prepare.inputs.text import TextSettings
from pipeline.prepare.inputs.tokens import ReadTexts, TokenizedTexts
from pipeline.prepare.params import Duplicates
from pipeline.tasks.sequence.targets import SequenceTargets

ENDS = 2
"""The tokens before and after a target text."""


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

    def dataset(self, read: ReadTexts, counts: Mapping[str, int], *, workers: int = 1, **options: Any) -> RawDataset:
        """Return the dataset of pairs. `counts` has their number in each split. Equal source texts are duplicates. For `options`, see RawDataset.

        `workers` processes tokenize MANY_TEXTS.
        """
        targets = {split: np.zeros((count, 0), SequenceTargets.dtype) for split, count in counts.items()}
        describe = partial(TextPairInputs, length=self.max_length, target_length=self.target_length)
        texts = TokenizedTexts(
            self,
            read,
            targets,
            describe=describe,
            rows_of=partial(partial, rows_of_pairs),
            fewest={"max_length": 0, "target_length": ENDS},
            workers=workers,
        )
        return texts.dataset(SequenceTargets(), together=self.duplicates == "together", **options)


def rows_of_pairs(
    tokenizer: Tokenizer, inputs: TextPairInputs, columns: Sequence[Sequence[str]]
) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of source texts and target texts, and the number of tokens of each source text and, with its ENDS, of each target text, (n,)."""
    assert tokenizer.description.end is not None
    texts, targets = columns
    sources, lengths = tokenizer.rows(texts, inputs.length)
    end = np.array([tokenizer.description.end], np.int32)
    target_rows = np.full((len(targets), inputs.target.length), inputs.pad, np.int32)
    encoded = [np.concatenate((end, found, end)) for found in tokenizer.encode_all(targets)]
    for row, found in zip(target_rows, encoded, strict=True):
        kept = found[: inputs.target_length]
        row[: len(kept)] = kept
    padding = ((0, 0), (0, inputs.source.length - inputs.length))
    rows = inputs.rows(np.pad(sources, padding, constant_values=inputs.pad), target_rows)
    return rows, lengths, np.array([len(found) for found in encoded], np.int64)
