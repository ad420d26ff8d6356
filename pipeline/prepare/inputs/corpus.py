"""A corpus for language models: documents, divided into splits, as rows of consecutive tokens."""

import hashlib
import mmap
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import ClassVar, NamedTuple, Self

import numpy as np

from pipeline.core.raw_dataset import TEST, TRAIN, VALID, RawDataset, SampleBlock, blocks_of
from pipeline.core.refusal import Refusal, counted
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.untrusted import shown
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.inputs import tokens as token_counts
from pipeline.prepare.inputs.text import Statistics, TextSettings
from pipeline.prepare.inputs.tokens import spread
from pipeline.prepare.reading.class_folders import split_in
from pipeline.tasks.language_modeling.targets import NextTokenTargets

BLOCK_TOKENS = 2**20
MOST_FITTED, MANY_CHARACTERS = 2**28, 2**25
PIECE_CHARACTERS = 2**21
"""A longer document is read, and tokenized, in pieces of about so many characters."""


class Document(NamedTuple):
    """The characters from `start` to before `end`, at least one, of the text of a file. `read` returns the whole text, in parts of any length, from the
    beginning at each call.
    """

    name: str
    start: int
    end: int
    read: Callable[[], Iterable[str]]

    @classmethod
    def of(cls, name: str, text: str) -> Self:
        """Return a document whose text is in memory."""
        return cls(name, 0, len(text), lambda: [text])

    @property
    def num_characters(self) -> int:
        return self.end - self.start

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of about PIECE_CHARACTERS, so that the tokens of all pieces are those of the whole text."""
        begin = 0
        for piece in pieces_of(self.read()):
            if chosen := piece[max(0, self.start - begin) : max(0, self.end - begin)]:
                yield chosen
            begin += len(piece)
            if begin >= self.end:
                return


def pieces_of(parts: Iterable[str]) -> Iterator[str]:
    """Yield the text of a file in pieces.

    A piece ends with a line break between a line that does not end with white space and one that begins with a letter or digit: no token
    of a tokenizer of this project crosses it.
    """
    rest, searched = "", 0
    for part in parts:
        rest += part
        if len(rest) > PIECE_CHARACTERS:
            if end := last_cut(rest, searched):
                yield rest[:end]
                rest = rest[end:]
            searched = 0 if end else len(rest) - 1
    if rest:
        yield rest


def last_cut(text: str, first: int) -> int:
    """Return the position after the last line break from `first` on that no token crosses, see `pieces_of`; 0 if there is none."""
    at = text.rfind("\n", max(1, first), len(text) - 1)
    while at > 0 and (text[at - 1].isspace() or not text[at + 1].isalnum()):
        at = text.rfind("\n", max(1, first), at)
    return at + 1


Divided = Mapping[str, Sequence[Document]]
"""The documents, or parts of some, of each split that exists."""


class Stored(NamedTuple):
    """The tokens of a split, int32, in a temporary file, and how many there are and are unknown. Only whole rows of the file count."""

    file: mmap.mmap
    num_tokens: int
    num_unknown: int


class CorpusSettings(TextSettings):
    """Settings of a source of documents. `valid` and `test` are shares of the characters.

    The tokens of a split form one sequence, in which the token that ends a text precedes each document. The target of each token is the next
    token. After the last token, the sequence begins again with its first token, unless padding follows. The sequence is cut into rows of
    `max_length` tokens. If the last row is incomplete, train drops it; valid and test fill it with padding.
    """

    divides: ClassVar[bool] = True
    TASK: ClassVar[str] = "language_modeling"

    def dataset(self, documents: Divided, *, workers: int) -> RawDataset:
        """Return the dataset of the documents of each split. Its tokenizer is fitted to the documents of train, or to every n-th piece of them if they
        have more than MOST_FITTED characters. `workers` processes tokenize a corpus of MANY_CHARACTERS. The tokens wait in a temporary file.

        Raises Refusal if no tokenizer can be fitted, if train has too few tokens for one row, or if the tokenizer finds no token in the
        documents of valid or of test.
        """
        other = VALID if VALID in documents else TEST
        sampled = {
            split: [next(document.pieces())[: token_counts.MOST_CHARACTERS] for document in several[:: token_counts.distance(len(several))]]
            for split, several in documents.items()
            if split in (TRAIN, other)
        }
        sizes = {split: sum(document.num_characters for document in several) for split, several in documents.items()}
        step = max(1, -(-sizes[TRAIN] // MOST_FITTED))
        tokenizer = self.fit_tokenizer(islice((piece for document in documents[TRAIN] for piece in document.pieces()), 0, None, step))
        processes = workers if sum(sizes.values()) >= MANY_CHARACTERS else 1
        stored = {split: self.tokenized(tokenizer, several, split, processes) for split, several in documents.items()}
        length = self.max_length  # an incomplete row at the end is left out
        rows = {
            split: np.frombuffer(found.file, np.int32, len(found.file) // (4 * length) * length).reshape(-1, length)
            for split, found in stored.items()
        }

        def blocks() -> Generator[SampleBlock]:
            for block in blocks_of(rows, max(1, BLOCK_TOKENS // length)):
                yield block
                stored[block.split].file.madvise(mmap.MADV_DONTNEED)  # the tokens are in the file

        def report(_: object) -> None:
            of_part = f", fitted to one of {step} pieces of train" if step > 1 else ""
            print(f"prepare: the tokenizer `{self.tokenizer}` has {tokenizer.num_tokens} tokens{of_part}")
            for split, found in stored.items():
                unknown = f", {found.num_unknown} of them not in the vocabulary" if found.num_unknown else ""
                print(f"prepare: {split}: {counted(len(documents[split]), 'document')}, {counted(found.num_tokens, 'token')}{unknown}")
            if warning := token_counts.warning(self, tokenizer, sampled[TRAIN], sampled.get(other, [])):
                print(f"prepare: {warning}")

        targets = {split: np.zeros((len(array), 0), NextTokenTargets.dtype) for split, array in rows.items()}
        statistics = Statistics(partial(TextInputs, length=self.max_length), tokenizer.description)
        return RawDataset(NextTokenTargets(), statistics, targets, blocks, report)

    def tokenized(self, tokenizer: Tokenizer, documents: Sequence[Document], split: str, workers: int) -> Stored:
        """Return the tokens of the documents of the split called `split`.

        Raises Refusal if the split is train and has too few tokens for one row. Raises Refusal if it is valid or test, and the tokenizer
        finds no token in its documents.
        """
        assert tokenizer.description.end is not None
        start, length = np.array([tokenizer.description.end], np.int32), self.max_length
        with tempfile.TemporaryFile(prefix="corpus-") as file:
            count, num_unknown, pieces = 0, 0, (numbered for document in documents for numbered in enumerate(document.pieces()))
            for number, found in spread(tokenizer.encode, pieces, workers=workers):
                for tokens in (found,) if number else (start, found):
                    file.write(tokens.astype(np.int32).data)
                    count += len(tokens)
                    num_unknown += int(np.count_nonzero(tokens == tokenizer.description.unknown))
            if split == TRAIN and count < length:
                raise Refusal(f"source.max_length: train has {count} tokens, but a row needs {length}: write at most {count}, or add text")
            if split != TRAIN and count == len(documents):
                raise Refusal(f"source.{split}: the documents of {split} have no tokens: write a larger share, or add text")
            if split != TRAIN:
                padding = np.full(-count % length, tokenizer.description.pad, np.int32)
                file.write(padding.data)
            file.flush()
            return Stored(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), count, num_unknown)


def divide_by_position(documents: Sequence[Document], *, valid: float, test: float) -> Divided:
    """Cut the sequence of documents into train, valid and test, in this order. A document at a cut is divided.

    `test` is a share of all characters. `valid` is a share of the characters that are not in test. If a share is 0, there is no such split.
    Raises Refusal if train, or a split with a share above 0, would have no characters.
    """
    total = sum(document.num_characters for document in documents)
    num_test = round(test * total)
    num_valid = round(valid * (total - num_test))
    ends = {TRAIN: total - num_test - num_valid, VALID: total - num_test, TEST: total}
    divided: dict[str, list[Document]] = {split: [] for split in ends}
    begin = 0
    for document in documents:
        for split, (first, last) in zip(ends, zip((0, *ends.values()), ends.values(), strict=False), strict=True):
            part = document._replace(start=max(0, first - begin), end=min(document.num_characters, last - begin))
            if part.start < part.end:
                divided[split].append(part)
        begin += document.num_characters
    return without_empty(divided, valid=valid, test=test)


def divide_by_name(documents: Sequence[Document], *, valid: float, test: float) -> Divided:
    """Assign each document as a whole to one split. The documents are assigned in the order of the SHA-256 of their names.

    The first documents go to test, until it has the share `test` of all characters. The next documents go to valid, until it has the share
    `valid` of the characters that are not in test. Train gets the rest. If a share is 0, there is no such split. Raises Refusal if train, or
    a split with a share above 0, would have no documents.
    """
    ordered = sorted(documents, key=lambda document: hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest())
    free = sum(document.num_characters for document in documents)
    assigned: dict[str, str] = {}
    for split, share in ((TEST, test), (VALID, valid)):
        wanted = share * free
        for document in ordered:
            if wanted <= 0:
                break
            if document.name not in assigned:
                assigned[document.name] = split
                wanted -= document.num_characters
                free -= document.num_characters
    divided: dict[str, list[Document]] = {split: [] for split in (TRAIN, VALID, TEST)}
    for document in documents:
        divided[assigned.get(document.name, TRAIN)].append(document)
    return without_empty(divided, valid=valid, test=test)


def divide_by_split(documents: Sequence[Document], *, valid: float, test: float) -> Divided:
    """Assign each document to the split that a word in its name means, such as `wiki.train.tokens`. A split without a document, and with a
    share above 0, is cut from the end of train. Raises Refusal if a name means no split, or like `divide_by_position`.
    """
    named: dict[str, list[Document]] = {TRAIN: [], VALID: [], TEST: []}
    for document in documents:
        if (split := split_in(document.name)) is None:
            problem = f"source.divide: {shown(document.name)}: its name means no split"
            raise Refusal(f"{problem}: put train, valid or test into it, or write `source.divide: position`")
        named[split].append(document)
    divided = divide_by_position(named[TRAIN], valid=0.0 if named[VALID] else valid, test=0.0 if named[TEST] else test)
    return {**divided, **{split: several for split, several in named.items() if several and split != TRAIN}}


def without_empty(divided: Divided, *, valid: float, test: float) -> Divided:
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
