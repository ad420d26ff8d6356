"""Turns texts, the lines of text files and the fields of tables into stored samples, to use a model with nothing but its model file."""

import codecs
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice
from typing import IO, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.untrusted import shown
from pipeline.inference.batch import Batch, without_padding
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.reading import delimited, streams, tables
from pipeline.prepare.reading.cells import Cells, texts
from pipeline.prepare.reading.file_tree import Member

Row = NDArray[np.int32]
SAMPLED_LINES = 1000
MOST_BYTES = 256 * 2**20
"""Upper bound for a file that is read into memory."""
NO_TOKENS = "has no tokens: write a text"
MOST_LINE_BYTES = 4 * 2**20
"""A longer line is refused. As many bytes are read at once."""


class Reader:
    """Reads texts for a model: each line of a file is one, or each file if they were so in the training."""

    strings_are_paths: ClassVar[bool] = False

    def __init__(self, inputs: TextInputs) -> None:
        self.inputs, self.tokenizer = inputs, Tokenizer(inputs.tokenizer)
        self.num_truncated, self.first_truncated = 0, ""
        self.encoding = streams.UTF8

    def read(self, file: Member) -> Iterator[tuple[str, Row | Refusal]]:
        """Yield the texts of a file that fits into memory. Raises what `file.read` raises."""
        yield from self.lines(file.name, BytesIO(file.read()))

    def lines(self, name: str, stream: IO[bytes]) -> Iterator[tuple[str, Row | Refusal]]:
        """Yield the text of each line, called `name:LINE`, or the reason why it cannot be read. Holds one line in memory.

        If each file was one text in the training, yield that of the whole stream instead, called `name`. Raises Refusal if the first line
        has the name of the column of the training, or if the stream has a NUL byte, unless it is a pipe: the lines of a pipe are read as
        they arrive.
        """
        if self.inputs.whole_files:
            yield name, self.line(tables.checked_text(text_of(stream.read(MOST_BYTES), self.encoding), ""), name)
            return
        encoding = self.encoding
        if stream.seekable():
            stream, encoding = with_lines_of_bytes(stream, encoding)
            refuse_binary(stream)
            refuse_fields(stream, encoding, self.inputs.column)
        for number, line in enumerate(bounded_lines(stream), start=1):
            place = f"{name}:{number}"
            try:
                text = decoded(line, encoding)
                if number == 1:
                    refuse_header(text, self.inputs.column)
                yield place, self.line(text, place)
            except NamesOfColumns:
                raise
            except Refusal as refusal:
                yield place, refusal

    def stored(self, places: Sequence[str], cells: Sequence[Cells]) -> tuple[NDArray[np.int32], dict[int, Refusal]]:
        """Return the rows (n, length) of the texts of a column, and the reason why by the number of each that cannot be read.

        `cells` has this column, and `places` the names of the texts.
        """
        given, refused = texts(cells[0]).to_pylist(), dict[int, Refusal]()
        for at, text in enumerate(given):
            try:
                tables.checked_text(text, "")
            except Refusal as refusal:
                given[at], refused[at] = "", refusal
        rows, lengths = self.tokenized(given, places)
        for at in np.flatnonzero(lengths == 0).tolist():
            refused.setdefault(at, Refusal(NO_TOKENS))
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
        """Return the row of one text, called `place`. Raises Refusal if it has a NUL or no tokens."""
        streams.refuse_nul(text)
        rows, lengths = self.tokenized([text], [place])
        if not lengths[0]:
            raise Refusal(NO_TOKENS if text else "is empty: write a text")
        row: Row = rows[0]
        return row

    def tokenized(self, given: Sequence[str], places: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the rows (n, length) of texts as `prepare` stores them, and their numbers of tokens. Count those that are truncated."""
        rows, lengths = self.tokenizer.rows(given, self.inputs.length)
        truncated = np.flatnonzero(lengths > self.inputs.length)
        if len(truncated):
            self.first_truncated = self.first_truncated or places[truncated[0]]
            self.num_truncated += len(truncated)
        return rows, lengths

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


class NamesOfColumns(Refusal):
    """Raised for a table that is given as a text file."""


def refuse_header(line: str, column: object) -> None:
    """Raise Refusal if the first line of a file has a field, or a key of JSON, that is called like the column of the training, or if it is
    divided into fields where the column of the training has a number.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    fields = found if isinstance(found, dict) else {field.strip('"') for sign in delimited.SEPARATORS for field in line.split(sign)}
    if column in fields:
        problem = f"its first line has the column {shown(column, 60)}, so it is a table"
        raise NamesOfColumns(f"{problem}: give a file whose name says so, such as by the suffix .csv")
    if isinstance(column, int) and any(sign in line for sign in ("\t", "|||", delimited.SEVERAL)):
        raise of_fields("its first line has", column)


def of_fields(has: str, column: int) -> NamesOfColumns:
    remedy = "give a .tsv file, or the texts alone, one in a line"
    return NamesOfColumns(f"{has} several fields, and the model reads field {column}: {remedy}")


def refuse_fields(stream: IO[bytes], encoding: str, column: object) -> None:
    """Raise Refusal if the first lines are all divided into fields, and the column of the training has a number: some may be labels.

    The position in the stream stays as it is.
    """
    start = stream.tell()
    found = [line.decode(encoding, "replace") for line in islice(bounded_lines(stream), SAMPLED_LINES) if line and line.strip()]
    stream.seek(start)
    with suppress(delimited.WrongLines):
        if isinstance(column, int) and len(found) >= delimited.FEWEST_LINES and delimited.line_separator(lambda: enumerate(found, 1), ""):
            raise of_fields("its lines have", column)


def text_of(content: bytes, encoding: str) -> str:
    """Return the text of a file or line. Raises Refusal, which advises the option --encoding, if the bytes are not valid."""
    try:
        return streams.decoded(content, encoding)
    except streams.NotDecoded as error:
        raise Refusal(error.advising("--encoding ")) from None


def with_lines_of_bytes(stream: IO[bytes], encoding: str) -> tuple[IO[bytes], str]:
    """Return the stream and its encoding or, if the end of a line has several bytes in it as in UTF-16, its text in UTF-8.

    Raises Refusal if the text is then too long for memory or not valid.
    """
    start = stream.tell()
    found = streams.marked(stream.read(4)) or encoding
    stream.seek(start)
    if len("\n".encode(found).removeprefix(codecs.BOM_UTF8)) == 1:
        return stream, found
    content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Refusal(f"is {found.upper()} of more than {MOST_BYTES} bytes: convert it to UTF-8")
    return BytesIO(text_of(content, encoding).encode()), streams.UTF8


def refuse_binary(stream: IO[bytes]) -> None:
    """Raise Refusal if the rest of the stream has a NUL byte. The position in the stream stays as it is."""
    start = stream.tell()
    while block := stream.read(MOST_LINE_BYTES):
        if b"\0" in block:
            raise Refusal("has a NUL byte, so it is no text in UTF-8: leave it out, or name its encoding, as by `--encoding utf-16-le`")
    stream.seek(start)


def bounded_lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Yield each line without its end, or None for a line of more than MOST_LINE_BYTES, which is skipped piece by piece."""
    while line := stream.readline(MOST_LINE_BYTES + 1):
        if len(line) <= MOST_LINE_BYTES or line.endswith(b"\n"):
            yield line.removesuffix(b"\n").removesuffix(b"\r")
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MOST_LINE_BYTES)
        yield None


def decoded(line: bytes | None, encoding: str) -> str:
    """Return a line as text, without a byte order mark. Raises Refusal if it is too long or not valid."""
    if line is None:
        raise Refusal(f"has more than {MOST_LINE_BYTES} bytes: divide the line")
    return text_of(line, encoding)
