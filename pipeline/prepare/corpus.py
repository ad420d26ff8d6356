"""A corpus for language models: documents, divided into splits, as rows of consecutive tokens."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.inputs.text import AnyDescription
from pipeline.core.raw_dataset import TEST, TRAIN, VALID, RawDataset, blocks_of
from pipeline.core.refusal import Refusal, counted
from pipeline.core.tasks.language_modeling import NextTokenTargets
from pipeline.core.tokenizer import Tokenizer
from pipeline.prepare import tokens as token_counts
from pipeline.prepare.inputs.text import Statistics, TextSettings

BLOCK_TOKENS = 2**20


class Document(NamedTuple):
    """The name of a file and its text, which is not empty."""

    name: str
    text: str


Divided = Mapping[str, Sequence[Document]]
"""The documents of each split that exists."""


class CorpusSettings(TextSettings):
    """Settings of a source of documents. `valid` and `test` are shares of the characters.

    The tokens of a split form one sequence, in which the token that ends a text precedes each document. The target of each token is the next
    token. After the last token, the sequence begins again with its first token, unless padding follows. The sequence is cut into rows of
    `max_length` tokens. If the last row is incomplete, train drops it; valid and test fill it with padding.
    """

    divides: ClassVar[bool] = True
    TASK: ClassVar[str] = "language_modeling"

    def dataset(self, documents: Divided) -> RawDataset:
        """Return the dataset of the documents of each split. Its tokenizer is fitted to the documents of train.

        Raises Refusal if no tokenizer can be fitted, if train has too few tokens for one row, or if the tokenizer finds no token in the
        documents of valid or of test.
        """
        tokenizer = self.fit_tokenizer(document.text for document in documents[TRAIN])
        rows = {split: self.rows(tokenizer, found, split) for split, found in documents.items()}

        def report(_: object) -> None:
            print(f"prepare: the tokenizer `{self.tokenizer}` has {tokenizer.num_tokens} tokens")
            for split, array in rows.items():
                print(f"prepare: {split}: {describe(array, len(documents[split]), tokenizer.description)}")
            known, new = ([document.text for document in documents.get(split, ())] for split in (TRAIN, VALID if VALID in rows else TEST))
            if warning := token_counts.warning(self, tokenizer, token_counts.measured(known), token_counts.measured(new)):
                print(f"prepare: {warning}")

        targets = {split: np.zeros((len(array), 0), NextTokenTargets.dtype) for split, array in rows.items()}
        statistics = Statistics(self.max_length, tokenizer.description)
        blocks = partial(blocks_of, rows, max(1, BLOCK_TOKENS // self.max_length))
        return RawDataset(NextTokenTargets(), statistics, targets, blocks, report)

    def rows(self, tokenizer: Tokenizer, documents: Sequence[Document], split: str) -> NDArray[np.int32]:
        """Return the tokens of the split called `split` in rows, (n, max_length). `documents` are the documents of this split.

        Raises Refusal if the split is train and has too few tokens for one row. Raises Refusal if it is valid or test, and the tokenizer
        finds no token in its documents.
        """
        assert tokenizer.description.end is not None
        start = np.array([tokenizer.description.end], np.int32)
        tokens = np.concatenate([part for document in documents for part in (start, tokenizer.encode(document.text))])
        length = self.max_length
        if split == TRAIN:
            if len(tokens) < length:
                raise Refusal(
                    f"source.max_length: train has {len(tokens)} tokens, but a row needs {length}: write at most {len(tokens)}, or add text"
                )
            return tokens[: len(tokens) // length * length].reshape(-1, length)
        if len(tokens) == len(documents):
            raise Refusal(f"source.{split}: the documents of {split} have no tokens: write a larger share, or add text")
        return np.pad(tokens, (0, -len(tokens) % length), constant_values=tokenizer.description.pad).reshape(-1, length)


def divide_by_position(documents: Sequence[Document], *, valid: float, test: float) -> Divided:
    """Cut the sequence of documents into train, valid and test, in this order. A document at a cut is divided.

    `test` is a share of all characters. `valid` is a share of the characters that are not in test. If a share is 0, there is no such split.
    Raises Refusal if train, or a split with a share above 0, would have no characters.
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
    """Assign each document as a whole to one split. The documents are assigned in the order of the SHA-256 of their names.

    The first documents go to test, until it has the share `test` of all characters. The next documents go to valid, until it has the share
    `valid` of the characters that are not in test. Train gets the rest. If a share is 0, there is no such split. Raises Refusal if train, or
    a split with a share above 0, would have no documents.
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
    """Return the splits that have documents. `valid` and `test` are the shares of these splits.

    Raises Refusal if train has no documents, or if valid or test has none although its share is above 0.
    """
    kept = {split: documents for split, documents in divided.items() if documents}
    for split, share in {VALID: valid, TEST: test, TRAIN: 1.0}.items():
        if share and split not in kept:
            raise Refusal(
                f"source.{split if split != TRAIN else TEST}: the corpus has too few characters or files to divide: nothing is left for {split}: "
                "change the shares source.valid and source.test, or add text; "
                "with `source.name: text`, you can also write `source.divide: position`, which needs only enough characters"
            )
    return kept


def describe(rows: NDArray[np.int32], num_documents: int, tokenizer: AnyDescription) -> str:
    """Return a text for the terminal with the number of documents and of tokens of a split. `rows` are the tokens; padding is not counted.

    If some tokens are unknown, the text says how many: they stand for what is not in the vocabulary.
    """
    num_unknown = 0 if tokenizer.unknown is None else np.count_nonzero(rows == tokenizer.unknown)
    unknown = f", {num_unknown} of them not in the vocabulary" if num_unknown else ""
    return f"{counted(num_documents, 'document')}, {counted(int(np.count_nonzero(rows != tokenizer.pad)), 'token')}{unknown}"
