"""Reads tables of every format (CSV, TSV, JSON, Parquet, lines of fields), some rows at a time, by columns."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import delimited, json_rows, parquet, streams
from pipeline.prepare.reading.delimited import LONGEST_FIELD, Chunk
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.streams import LOOK, TextBlock, looking, text_blocks
from pipeline.prepare.reading.table_formats import JSON, JSON_LINES, suffix_of

MOST_NAMED = 10
"""How many faulty rows of a table a message lists."""
MOST_LOOKED_AT = 100_000
"""How many rows of a packed file `look` returns."""
NO_ROWS = "has no rows: add some, or remove the file"
Named = Sequence[tuple[str, Column]]
"""Columns to read, each behind the key or option that names it in messages, such as `source.text_column`, or "" if none does."""
Numbered = tuple[int, Mapping[Column, Any]]
"""The number of a line, and the cells of its row by column."""
ReadText = Callable[[], Iterable[TextBlock]]


class Block(NamedTuple):
    """Consecutive rows of a table. `lines` (n,) has the number of the line of each, or of the row in Parquet and documents of JSON, from 1.

    `cells` has an Arrow array for each column: see `pipeline.prepare.reading.arrow_cells`.
    """

    lines: NDArray[np.int64]
    cells: Mapping[Column, Any]


@dataclass(frozen=True)
class Columns:
    """The columns of a table that make up its labelled rows. All are names, or all are numbers."""

    labels: tuple[Column, ...]
    """The targets are in these columns: in one, or in several of which each has one number or label."""
    text: Column | None = None
    """The texts, or with `of_images` the paths of images."""
    split: Column | None = None
    cells: tuple[Column, ...] = ()
    """The inputs of a row with several."""
    label_key: str = "label_column"
    of_images: bool = False

    @cached_property
    def named(self) -> Named:
        """Return the columns in the order in which a missing one is reported."""
        keys = [f"source.{self.label_key}{f'.{number}' if len(self.labels) > 1 else ''}" for number in range(len(self.labels))]
        text = [] if self.text is None else [(f"source.{'image' if self.of_images else 'text'}_column", self.text)]
        split = [] if self.split is None else [("source.split_column", self.split)]
        return [*text, *split, *(("", cell) for cell in self.cells), *zip(keys, self.labels, strict=True)]


def blocks(path: Path, columns: Named, *, encoding: str = streams.UTF8) -> Generator[Block]:
    """Yield the rows of a table that are not blank, with their cells in `columns`.

    Raises Refusal if the file cannot be parsed, has no rows, or lacks a column, or if a row has more or fewer fields than the first row.
    """
    place, suffix = f"source.root: {shown(path)}", suffix_of(path)
    if suffix in (*JSON_LINES, parquet.SUFFIX) and any(isinstance(column, int) for _, column in columns):
        keys = [key for key, column in columns if isinstance(column, int) and key]
        if not keys:
            raise Refusal("its columns have names, but the model knows its columns by numbers: write a CSV without a line of names")
        raise Refusal(f"{keys[0]}: the columns of {shown(path)} have names, not numbers: set {' and '.join(keys)} to names of its columns")
    if suffix == parquet.SUFFIX:
        chunks = parquet.chunks(path, list(dict.fromkeys(column for _, column in columns)))
        found: Iterator[Block] = (Block(np.arange(number, number + len(next(iter(cells.values())))), cells) for number, cells in chunks)
    else:
        found = blocks_of(partial(text_blocks, path, encoding), suffix, place, columns)
    first = next(found, None)
    if first is None:
        raise Refusal(f"{place}: {NO_ROWS}")
    yield first
    yield from found


def blocks_of(read: ReadText, suffix: str, place: str, columns: Named) -> Generator[Block]:
    """Yield the rows of the text of a table with this suffix. Raises Refusal, which begins with `place`, as `blocks` does."""
    if suffix in JSON:
        yield from of_json(json_of(read, suffix, place), place, columns)
    else:
        yield from keyed(chunks_of(read, suffix, place), place, columns)


def chunks_of(read: ReadText, suffix: str, place: str) -> Iterator[Chunk]:
    """Yield all fields of all rows of a table of text, the line of names included."""
    if suffix in ("", ".txt"):
        return delimited.line_chunks(read, place)
    if LOOK.get():
        return delimited.look_chunks(read(), place, quoted=suffix != ".tsv")
    return delimited.of_blocks(read(), place, "\t", quoted=False) if suffix == ".tsv" else delimited.csv_chunks(read(), place)


def json_of(read: ReadText, suffix: str, place: str) -> Iterator[tuple[int, json_rows.Fields]]:
    return (json_rows.of_document if suffix == ".json" else json_rows.of_lines)(read(), place)


def keyed(chunks: Iterator[Chunk], place: str, columns: Named) -> Generator[Block]:
    """Yield the fields of all rows in `columns`. If these are names, the first row has the names of all columns.

    Raises MissingColumn if one of `columns` does not occur exactly once.
    """
    first = next(chunks, None)
    names = [] if first is None else first.row(0)
    by_name = all(isinstance(column, str) for _, column in columns)
    known: list[Any] = names if by_name else list(range(1, len(names) + 1))
    for key, column in columns:
        if first is None:
            raise MissingColumn(f"{place}: {NO_ROWS}", column)
        if known.count(column) != 1:
            raise MissingColumn(
                f"{key}: is {shown(column)}, but {place.removeprefix('source.root: ')}:{first.lines[0]} has the columns {shown(', '.join(map(str, known)))}: write one of these "
                "(it must not occur twice); if the first line has no column names, write the number of the column, from 1",
                column,
            )
    assert first is not None
    rows = Chunk(first.lines[1:], [column.slice(1) for column in first.columns]) if by_name else first
    for chunk in chain([rows], chunks):
        if len(chunk.lines):
            yield Block(chunk.lines, {column: chunk.columns[known.index(column)] for _, column in columns})


def of_json(rows: Iterable[tuple[int, json_rows.Fields]], place: str, columns: Named) -> Generator[Block]:
    """Yield the rows with their values in `columns`. Raises Refusal if a row lacks one, and MissingColumn if it is the first row."""
    is_first = True
    for several in json_rows.several(rows):
        for line, fields in several:
            for _, column in columns:
                if column not in fields:
                    keys = " and ".join(str(column) for _, column in columns)
                    problem = f"{place}:{line}: has no key {shown(column)}: write one object per line with the keys {keys}"
                    raise MissingColumn(problem, column) if is_first else Refusal(problem)
            is_first = False
        cells = {column: json_rows.column_of(several, column, place) for _, column in columns}
        yield Block(np.array([line for line, _ in several]), cells)


def records(found: Iterable[Block]) -> Iterator[Numbered]:
    """Yield the number of the line of each row, and its cells, a dict by column."""
    for block in found:
        names, columns = list(block.cells), [cells.to_pylist() for cells in block.cells.values()]
        for line, fields in zip(block.lines.tolist(), zip(*columns, strict=True), strict=True):
            yield line, dict(zip(names, fields, strict=True))


def names(path: Path, *, encoding: str = streams.UTF8) -> list[str]:
    """Return the names of the columns of a table: those in the first line, the keys of the first row, or those of Parquet that hold single values.

    Raises Refusal if the file cannot be parsed.
    """
    suffix, place, read = suffix_of(path), f"source.root: {shown(path)}", partial(text_blocks, path, encoding)
    if suffix == parquet.SUFFIX:
        return parquet.plain_columns(path)
    if suffix in JSON:
        return [str(name) for name in next(json_of(read, suffix, place), (0, {}))[1]]
    beginning = next(iter(read()))
    first = next(chunks_of((lambda: [beginning]) if suffix not in ("", ".txt") else read, suffix, place), None)
    return [] if first is None else first.row(0)


def look(path: Path, *, encoding: str = streams.UTF8) -> list[Any]:
    """Return the fields of rows of a table of text that are not blank, by position or by name, with the first line; of a large one, only some.

    They are those of `streams.look`. Raises Refusal if the file cannot be parsed.
    """
    suffix, place = suffix_of(path), f"source.root: {shown(path)}"
    if suffix == ".json":
        return [fields for _, fields in json_of(partial(text_blocks, path, encoding), suffix, place)]
    with looking():
        if suffix in JSON_LINES:
            return [fields for _, fields in islice(json_of(partial(text_blocks, path, encoding), suffix, place), MOST_LOOKED_AT)]
        chunks = chunks_of(partial(text_blocks, path, encoding), suffix, place)
        rows = (list(row) for chunk in chunks for row in zip(*(column.to_pylist() for column in chunk.columns), strict=True))
        return list(islice(rows, MOST_LOOKED_AT))


def unread(path: Path, *, encoding: str = streams.UTF8) -> list[str]:
    """Return the columns that `names` leaves out: those of Parquet with images or nested values, and keys that the first row of JSON lacks."""
    known, suffix = names(path, encoding=encoding), suffix_of(path)
    if suffix == parquet.SUFFIX:
        with parquet.opened(path) as file:
            every = dict.fromkeys(file.schema_arrow.names)
    elif suffix in JSON:
        every = dict[str, None]()
        for _, fields in json_of(partial(text_blocks, path, encoding), suffix, f"source.root: {shown(path)}"):
            every.update(dict.fromkeys(map(str, fields)))
    else:
        return []
    return [name for name in every if name not in known]


def checked_text(text: object, place: str) -> str:
    """Return `text` unchanged. Raises Refusal if it is empty, not a string, has a NUL, or has more than LONGEST_FIELD characters.

    `place` is the file, and the line if there is one, for the message.
    """
    remedy = "write a text, or remove the row or file"
    if text is None or (isinstance(text, str) and not text.strip()):
        raise Refusal("has an empty text", remedy=remedy, place=place)
    if not isinstance(text, str):
        raise Refusal("has a text that is not a string", remedy=remedy, place=place)
    if "\0" in text:
        raise Refusal("has a NUL character, so it is no text", remedy="remove it", place=place)
    if len(text) > LONGEST_FIELD:
        raise Refusal(f"has a text of {len(text)} characters, more than {LONGEST_FIELD}", remedy="shorten or divide it", place=place)
    return text


class UnusableRows(Refusal):
    """Raised if rows of a table cannot be used."""


class FaultyRows:
    """The rows of the file `path` that cannot be used, by what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self.place, self.num_rows, self.lines = f"source.root: {shown(path)}", 0, defaultdict[str, list[int]](list)
        self.first: UnusableRows | None = None

    def add(self, found: NDArray[np.int64], refusal: Refusal) -> None:
        """Add the rows in these lines. `refusal` says what is wrong with each."""
        problem = refusal.problems[0]
        if len(found):
            self.first = self.first or UnusableRows(problem.text, remedy=problem.remedy, place=f"{self.place}:{found[0] or '?'}")
            self.lines[problem.unplaced] += [int(line) for line in found]

    def refuse(self) -> None:
        """Raise Refusal if there are any. Rows with the same problem are listed together, at most MOST_NAMED problems, and lines of each."""
        count = sum(map(len, self.lines.values()))
        if count == 1 and self.first:
            raise self.first
        if count:
            each = sorted(self.lines.items(), key=lambda entry: entry[1][0])
            texts = [f"line {listed([str(line or '?') for line in sorted(found)], MOST_NAMED)}: {text}" for text, found in each]
            raise UnusableRows(f"{self.place}: {count} of {self.num_rows} rows cannot be used: {listed(texts, MOST_NAMED, separator='; ')}")
