"""A corpus for language models: documents, divided into splits, as rows of consecutive tokens."""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.inputs.text.description import END, PAD, UNKNOWN
from pipeline.inputs.text.settings import TextSettings
from pipeline.inputs.text.statistics import Statistics
from pipeline.inputs.text.tokenizer import Tokenizer
from pipeline.raw_dataset import TEST, TRAIN, VALID, RawDataset, SampleBlock
from pipeline.refusal import Refusal
from pipeline.tasks.language_modeling.targets import NextTokenTargets

BLOCK_TOKENS = 2**20


class Document(NamedTuple):
    """The name of a file and its text, which is not empty."""

    name: str
    text: str


Divided = Mapping[str, Sequence[Document]]
"""The documents of each split that exists."""


class CorpusSettings(TextSettings):
    """Settings of a source of documents. `valid` and `test` are shares of the characters.

    A split is the sequence END document END document ... END document. The target of each token is the next one; that of the last token is
    the first END. The sequence is cut into rows of `max_length` tokens. An incomplete last row is dropped in train, and filled with PAD in
    valid and test.
    """

    divides: ClassVar[bool] = True
    task: ClassVar[str] = "language_modeling"

    def dataset(self, documents: Divided) -> RawDataset:
        """Return the dataset, with its tokenizer fitted to the documents of train.

        Raises Refusal if train has fewer than `max_length` tokens, or if valid or test has none.
        """
        tokenizer = self.fit_tokenizer(document.text for document in documents[TRAIN])
        rows = {split: self.rows(tokenizer, found, split) for split, found in documents.items()}

        def report(_: object) -> None:
            print(f"prepare: the tokenizer `{self.tokenizer}` has {tokenizer.num_tokens} tokens")
            for split, array in rows.items():
                print(f"prepare: {split}: {describe(array, len(documents[split]))}")

        targets = {split: np.zeros((len(array), 0), NextTokenTargets.dtype) for split, array in rows.items()}
        statistics = Statistics(self.max_length, tokenizer.description)
        return RawDataset(NextTokenTargets(), statistics, targets, lambda: blocks(rows), report)

    def rows(self, tokenizer: Tokenizer, documents: Sequence[Document], split: str) -> NDArray[np.int32]:
        """Return the tokens of a split in rows, (n, max_length).

        Raises Refusal if train has fewer tokens than one row, or if the documents of another split have no tokens.
        """
        start = np.array([END], np.int32)
        tokens = np.concatenate([part for document in documents for part in (start, tokenizer.encode(document.text))])
        length = self.max_length
        if split == TRAIN:
            if len(tokens) < length:
                raise Refusal(
                    f"source.max_length: train has {len(tokens)} tokens, less than the {length} of one row: write at most {len(tokens)}, "
                    "or add text"
                )
            return tokens[: len(tokens) // length * length].reshape(-1, length)
        if len(tokens) == len(documents):
            raise Refusal(f"source.{split}: the documents of {split} have no tokens: write a larger share, or add text")
        return np.pad(tokens, (0, -len(tokens) % length), constant_values=PAD).reshape(-1, length)


def divide_by_position(documents: Sequence[Document], *, valid: float, test: float) -> Divided:
    """Cut the sequence of documents into train, valid and test, in this order. A document at a cut is divided.

    `test` is the share of all characters, and `valid` the share of those that test leaves. Raises Refusal if a split would have no
    characters.
    """
    total = sum(len(document.text) for document in documents)
    num_test = round(test * total)
    num_valid = round(valid * (total - num_test))
    ends = {TRAIN: total - num_test - num_valid, VALID: total - num_test, TEST: total}
    divided: dict[str, list[Document]] = {split: [] for split in ends}
    begin = 0
    for document in documents:
        for split, (first, last) in zip(ends, zip((0, *ends.values()), ends.values(), strict=False), strict=True):
            part = document.text[max(0, first - begin) : max(0, last - begin)]
            if part:
                divided[split].append(Document(document.name, part))
        begin += len(document.text)
    return without_empty(divided, valid=valid, test=test)


def divide_by_name(documents: Sequence[Document], *, valid: float, test: float) -> Divided:
    """Assign whole documents to the splits, in the order of the SHA-256 of their names: first test, then valid, then train.

    Test takes documents until it has the share `test` of all characters, then valid until it has the share `valid` of those that are left.
    Train gets the rest. Raises Refusal if a split would have no documents.
    """
    ordered = sorted(documents, key=lambda document: hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest())
    free = sum(len(document.text) for document in documents)
    assigned: dict[str, str] = {}
    for split, share in ((TEST, test), (VALID, valid)):
        wanted = share * free
        for document in ordered:
            if wanted <= 0:
                break
            if document.name not in assigned:
                assigned[document.name] = split
                wanted -= len(document.text)
                free -= len(document.text)
    divided: dict[str, list[Document]] = {split: [] for split in (TRAIN, VALID, TEST)}
    for document in documents:
        divided[assigned.get(document.name, TRAIN)].append(document)
    return without_empty(divided, valid=valid, test=test)


def without_empty(divided: Mapping[str, Sequence[Document]], *, valid: float, test: float) -> Divided:
    """Leave out valid or test if its share is 0. Raises Refusal if a split is empty whose share is above 0, or if train is empty."""
    kept = {split: documents for split, documents in divided.items() if documents}
    for split, share in {VALID: valid, TEST: test, TRAIN: 1.0}.items():
        if share and split not in kept:
            raise Refusal(
                f"source.{split if split != TRAIN else TEST}: the corpus has too few characters or files to divide: nothing is left for {split}: "
                "change the shares source.valid and source.test, or add text; a source with the key `divide` can also divide it by position"
            )
    return kept


def blocks(rows: Mapping[str, NDArray[np.int32]]) -> Generator[SampleBlock]:
    for split, array in rows.items():
        step = max(1, BLOCK_TOKENS // array.shape[1])
        for start in range(0, len(array), step):
            block = array[start : start + step]
            yield SampleBlock(split, np.arange(start, start + len(block)), block)


def describe(rows: NDArray[np.int32], num_documents: int) -> str:
    """Return the number of documents and tokens of a split, and how many of the tokens are UNKNOWN."""
    num_unknown = np.count_nonzero(rows == UNKNOWN)
    unknown = f", {num_unknown} of them not in the vocabulary" if num_unknown else ""
    return f"{num_documents} documents, {np.count_nonzero(rows)} tokens{unknown}"
