"""Turns texts, the lines of text files and the fields of tables into stored samples, to use a model with nothing but its model file."""

import codecs
import re
from collections.abc import Iterator, Sequence
from io import BufferedReader, TextIOWrapper
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.untrusted import shown
from pipeline.inference.batch import Batch, without_padding
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.reading import delimited, streams, tables
from pipeline.prepare.reading.arrow_cells import Cells, texts
from pipeline.prepare.reading.delimited import LONGEST_FIELD

Row = NDArray[np.int32]
MOST_BYTES = 256 * 2**20
"""Upper bound for a file that is one text."""
INVALID = re.compile("[\udc80-\udcff]")
"""Matches what Python's error handler `surrogateescape` makes of bytes that are not valid."""


class Reader:
    """Reads texts for a model: each line of a file is one, or each file if they were so in the training."""

    strings_are_paths: ClassVar[bool] = False

    def __init__(self, inputs: TextInputs) -> None:
        self.inputs, self.tokenizer = inputs, Tokenizer(inputs.tokenizer)
        self.num_truncated, self.first_truncated = 0, ""
        self.encoding = streams.UTF8

    def lines(self, name: str, stream: "BufferedReader[Any]") -> Iterator[tuple[str, Row | Refusal]]:
        """Yield the text of each line, called `name:LINE`, or the reason why it cannot be read. Holds one line in memory.

        If each file was one text in the training, yield that of the whole stream instead, called `name`. Raises Refusal if the beginning of
        the stream seems to be that of a table or has a NUL character, as files that are no texts have, and at a line with more than
        LONGEST_FIELD characters.
        """
        start = stream.peek()
        encoding = streams.marked(start) or streams.WITHOUT_MARK.get(codecs.lookup(self.encoding).name, self.encoding)
        if self.inputs.whole_files:
            yield name, self.line(text_of(stream.read(MOST_BYTES), encoding), name)
            return
        sample = start.decode(encoding, "replace")
        if "\0" in sample:
            remedy = "leave it out, or name its encoding, as by `--encoding utf-16-le`"
            raise Refusal(f"has a NUL character, so it is no text in {encoding.upper()}: {remedy}")
        refuse_table(sample, self.inputs.column)
        text = TextIOWrapper(stream, encoding, "surrogateescape", newline="\n")
        try:
            for number, ended in enumerate(iter(lambda: text.readline(LONGEST_FIELD + 1), ""), start=1):
                line = ended.removesuffix("\n").removesuffix("\r")
                if len(line) > LONGEST_FIELD:
                    raise Refusal(f"line {number} has more than {LONGEST_FIELD} characters: divide the line")
                place = f"{name}:{number}"
                try:
                    yield place, self.line(checked(line, encoding), place)
                except Refusal as refusal:
                    yield place, refusal
        finally:
            text.detach()  # the stream is the caller's

    def stored(self, places: Sequence[str], cells: Sequence[Cells]) -> tuple[NDArray[np.int32], dict[int, Refusal]]:
        """Return the rows (n, length) of the texts of a column, and the reason why by the number of each that cannot be read.

        `cells` has this column, and `places` the names of the texts.
        """
        return self.rows(places, texts(cells[0]).to_pylist())

    def rows(self, places: Sequence[str], given: list[Any]) -> tuple[NDArray[np.int32], dict[int, Refusal]]:
        """Return the rows (n, length) of texts as `prepare` stores them, and the reason why by the number of each that cannot be read.

        Count those that are truncated.
        """
        refused = dict[int, Refusal]()
        for at, text in enumerate(given):
            try:
                tables.checked_text(text, "")
            except Refusal as refusal:
                given[at], refused[at] = "", refusal
        rows, lengths = self.tokenizer.rows(given, self.inputs.length)
        if len(truncated := np.flatnonzero(lengths > self.inputs.length)):
            self.first_truncated = self.first_truncated or places[truncated[0]]
            self.num_truncated += len(truncated)
        for at in np.flatnonzero(lengths == 0).tolist():
            refused.setdefault(at, Refusal("has no tokens: write a text"))
        return rows, refused

    def expected(self) -> str:
        """Describe the texts that are sent to a model in MLflow, for people."""
        return f"a list of texts, of which the model reads at most {self.inputs.length} tokens each"

    def example(self, stored: NDArray[Any]) -> list[str]:
        """Return a text that could be sent for each stored sample."""
        tokens = (number for number in range(self.inputs.num_tokens) if number not in self.tokenizer.special)
        return [self.tokenizer.decode(islice(tokens, 8))] * len(stored)

    def values(self, given: Any) -> list[str]:
        """Return texts that were sent. Raises ValueError for anything else."""
        texts = np.asarray(given, dtype=object)
        if texts.shape[1:] not in ((), (1,)) or not texts.size or not all(isinstance(text, str) for text in texts.flat):
            raise ValueError("the input contains something else than texts: send a list of texts")
        return [*texts.ravel()]

    def row(self, value: Any) -> Row:
        """Return a text as a stored sample. Raises Refusal for anything else, and for a text without tokens."""
        if not isinstance(value, str):
            raise Refusal(f"is of type {type(value).__name__}: give a text (str), or the path of a text file (pathlib.Path)")
        return self.line(value, repr(value[:40]))

    def line(self, text: str, place: str) -> Row:
        """Return the row of one text, called `place`. Raises Refusal if it is empty or has no tokens."""
        rows, refused = self.rows([place], [text])
        if refused:
            raise refused[0]
        row: Row = rows[0]
        return row

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Return the samples as the input of a forward pass, (n, length), cut to the longest one as in training."""
        stacked = np.asarray(rows)
        return Batch(without_padding(torch.from_numpy(stacked), torch.from_numpy(self.inputs.lengths(stacked))))

    def note(self) -> str:
        """Say how many texts were truncated so far; "" if none was."""
        if not self.num_truncated:
            return ""
        several = "1 text has" if self.num_truncated == 1 else f"{self.num_truncated} texts have"
        return f"{several} more than the {self.inputs.length} tokens that the model reads, and the rest was left out: first {self.first_truncated}"


def refuse_table(start: str, column: object) -> None:
    """Raise Refusal if the first line of a text, of which `start` is the beginning, has a field, or a key of JSON, that is called like the
    column of the training, or if the lines have several fields where the column of the training has a number: some may be labels.
    """
    sample = [line for line in start.split("\n")[:-1] or [start] if line.strip()]
    first = sample[0] if sample else ""
    fields = {field.strip('"') for sign in delimited.SEPARATORS for field in first.rstrip("\r").split(sign)}
    if column in fields or (first.startswith("{") and f'"{column}":' in first):
        problem = f"its first line has the column {shown(column, 60)}, so it is a table"
        raise Refusal(f"{problem}: give a file whose name says so, such as by the suffix .csv")
    if isinstance(column, int) and have_fields(sample):
        remedy = "give a .tsv file, or the texts alone, one in a line"
        raise Refusal(f"its lines have several fields, and the model reads field {column}: {remedy}")


def have_fields(sample: Sequence[str]) -> bool:
    """Return True if lines seem to be divided into fields, such as a label and a text."""
    try:
        return len(sample) >= delimited.FEWEST_LINES and delimited.line_separator(lambda: enumerate(sample, 1), "") is not None
    except delimited.WrongLines:
        return False


def text_of(content: bytes, encoding: str) -> str:
    """Return the text of a file or line. Raises Refusal, which advises the option --encoding, if the bytes are not valid."""
    try:
        return streams.decoded(content, encoding)
    except streams.NotDecoded as error:
        raise Refusal(error.advising("--encoding ")) from None


def checked(line: str, encoding: str) -> str:
    """Return a line unchanged. Raises Refusal if it has a byte that is not valid, which Python has decoded as a surrogate."""
    if INVALID.search(line):
        encoding = encoding.removesuffix("-sig")
        text_of(line.encode(encoding, "surrogateescape"), encoding)
    return line
