"""Reads texts: whole files, and tables (CSV, TSV, JSON, Parquet) row by row."""

import csv
import errno
import gzip
import io
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.core import untrusted
from pipeline.core.inputs.table import as_number
from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading import archives, encodings, lines, parquet
from pipeline.prepare.reading.file_tree import errors_as_refusal
from pipeline.prepare.reading.labels import ClassLabels, LabelledRow, Labels
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.split_names import split_of_value

MOST_BYTES = 256 * 2**20
"""Upper bound for a file of text, which is read into memory as a whole."""


def read_text(path: Path, most_bytes: int | None = None, *, encoding: str = encodings.UTF8) -> str:
    """Return the text of a file, decompressed if its name ends with `.gz`.

    The path may be that of a file in an archive, such as `data.zip/train.csv`. Raises Refusal if it cannot be read, has more than
    `most_bytes`, by default MOST_BYTES, or is not in `encoding`.
    """
    most = most_bytes or MOST_BYTES
    try:
        content = content_of(path, most)
        if path.suffix.lower() == ".gz":
            content = decompressed(content, most)
    except OSError as error:
        raise Refusal(
            f"source.root: {shown(path)}: cannot be read ({error.strerror}): make it a readable file of at most {most} bytes"
        ) from None
    return decode(content, shown(path), encoding=encoding)


def content_of(path: Path, most_bytes: int) -> bytes:
    archive = next((folder for folder in path.parents if folder.is_file()), None)
    if archive is None:
        return untrusted.read(path, most_bytes)
    with errors_as_refusal(archive), archives.open_tree(archive).contents([path.relative_to(archive).as_posix()]) as members:
        return next(members).read()


def decompressed(content: bytes, most_bytes: int) -> bytes:
    """Return the contents of a gzip file. Raises OSError if it is damaged, or TooLarge if it has more than `most_bytes`."""
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most_bytes + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise OSError(errno.EIO, f"Is no complete gzip file, {reason(error)}") from None
    if len(data) > most_bytes:
        raise untrusted.TooLarge(len(data), most_bytes)
    return data


def decode(content: bytes, place: str, *, encoding: str = encodings.UTF8) -> str:
    """Return `content`, the bytes of a file, as text, like `encodings.decoded`. `place` names the file in messages.

    Raises Refusal, which names the line, if the bytes are not valid or contain a NUL character.
    """
    text = encodings.decoded(content, encoding, f"source.root: {place}")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Refusal(f"source.root: {place}:{line}: has a NUL character, so it is no text: remove it, or leave out the file")
    return text


LONGEST_FIELD = 2**20
"""Upper bound for the number of characters of a field."""
MOST_NAMED = 10
"""How many faulty rows of a table a message lists."""
JSON_LINES = (".jsonl", ".ndjson")
NAMED_SUFFIXES = (*JSON_LINES, parquet.SUFFIX)
"""Tables whose columns always have names."""
SEPARATORS = ",;\t|"
BLANKS = " "
"""Any number of blanks and tabs, as a separator."""
SAMPLED_CHARACTERS = 2**16
"""The number of characters of a `.csv` in which its separator is searched for."""
EXCEL = re.compile(r"sep=(.)\r?\n")
"""The first line by which a table tells Excel its separator."""
NO_LABEL = (None, "", -1, "-1")
"""Values that stand for a label where none is known."""
REMOVE_OR_SKIP = "remove the row, or leave out all such rows with source.on_corrupt=skip"
NO_ROWS = "has no rows: add some, or remove the file"
FILL_OR_SKIP = f"write a text, {REMOVE_OR_SKIP}"
"""The remedy that the refusal of an empty text names."""
Named = Sequence[tuple[str, Column]]
"""Columns to read, each behind the key or option that names it in messages, such as `source.text_column`, or "" if none does."""
Numbered = tuple[int, Any]
"""The number of a line, and the fields of its row by position or by name."""


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

    @property
    def text_key(self) -> str:
        return "image_column" if self.of_images else "text_column"

    @cached_property
    def named(self) -> Named:
        """Return the columns in the order in which a missing one is reported."""
        keys = [f"source.{self.label_key}{f'.{number}' if len(self.labels) > 1 else ''}" for number in range(len(self.labels))]
        text = [] if self.text is None else [(f"source.{self.text_key}", self.text)]
        split = [] if self.split is None else [("source.split_column", self.split)]
        return [*text, *split, *(("", cell) for cell in self.cells), *zip(keys, self.labels, strict=True)]

    @cached_property
    def names(self) -> set[Column]:
        return {column for _, column in self.named}


def suffix_of(path: Path) -> str:
    """Return the suffix of a table in lower case, such as `.csv` also for `A.CSV.gz`, or "" if the file is no table."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), "")


def read(
    path: Path,
    columns: Columns,
    labels: Labels | None = None,
    split: str = TRAIN,
    *,
    encoding: str = encodings.UTF8,
    keep_empty: bool = False,
) -> list[LabelledRow]:
    """Return the labelled rows of a table. Blank lines are skipped. `labels` checks the labels, by default those of classes.

    `split` is that of the rows if no column names it. With `keep_empty`, a row with an empty text, or with the names of the columns, is returned with nothing else. Raises Refusal if the file cannot
    be parsed or has no rows, and MissingColumn if it lacks a column or has no label. Raises Refusal with the line if a row has more or fewer
    columns than the first row, and with all lines if texts, labels or splits are invalid, or if a row has the names of the columns again, as in
    joined files.
    """
    place = f"source.root: {shown(path)}"
    labels = labels or ClassLabels(columns.labels)
    found = records(path, columns.named, encoding=encoding)
    if empty := next((label for label in columns.labels if all(fields[label] in NO_LABEL for _, fields in found)), None):
        raise MissingColumn(
            f"{place}: has no label in the column {shown(empty)}: write the labels into it, or choose another column", empty
        )
    classes = parquet.class_names(path, columns.labels[0]) if suffix_of(path) == parquet.SUFFIX else ()
    rows, problems = list[LabelledRow](), dict[int, Refusal]()
    for line, fields in found:
        try:
            rows.append(checked(LabelledRow(path, line, "", "", split), fields, columns, labels, classes, keep_empty=keep_empty))
        except Refusal as error:
            problems[line] = error
    refuse_rows(problems, len(found), place)
    return rows


def checked(
    row: LabelledRow, fields: Mapping[Column, Any], columns: Columns, labels: Labels, classes: Sequence[str], *, keep_empty: bool
) -> LabelledRow:
    """Return `row` with the text, the label, the split and the cells in `fields`. Raises Refusal as `read` does.

    `classes` are the names of the classes whose numbers a Parquet file stores.
    """
    place, text = f"source.root: {row.place}", None
    if columns.text is not None:
        text = fields[columns.text]
        are_names = isinstance(columns.text, str) and {str(fields[name]) for name in columns.names} == columns.names
        if keep_empty and (are_names or is_empty(text)):
            return row
        if are_names:
            raise Refusal("has the names of the columns in place of values", remedy=REMOVE_OR_SKIP, place=place)
        is_number = columns.of_images and isinstance(text, int)  # JSON and Parquet have names of images such as 17
        text = checked_text(str(text) if is_number else text, place, FILL_OR_SKIP)
    cells = [fields[label] for label in columns.labels]
    known = [[stored(item, classes) for item in cell] if isinstance(cell, list) else stored(cell, classes) for cell in cells]
    named = None if columns.split is None else split_of_value(fields[columns.split], str(columns.split), place)
    inputs = tuple(fields[column] for column in columns.cells)
    return row._replace(text=text or "", label=labels.checked(known, place), split=named or row.split, cells=inputs)


def stored(cell: Any, names: Sequence[str]) -> Any:
    """Return the name for a number of a class that a Parquet file stores `names` for; any other cell as it is."""
    return names[cell] if isinstance(cell, int) and 0 <= cell < len(names) else cell


def refuse_rows(problems: Mapping[int, Refusal], num_rows: int, place: str) -> None:
    """Raise Refusal if there are problems of rows, by their line in the file `place`.

    Rows with the same problem are listed together. At most MOST_NAMED problems, and lines of each, are listed.
    """
    if len(problems) == 1:
        raise next(iter(problems.values()))
    places = defaultdict[str, list[str]](list)
    for line, refusal in problems.items():
        places[refusal.problems[0].unplaced].append(str(line))
    if problems:
        texts = [f"line {listed(numbers, MOST_NAMED)}: {text}" for text, numbers in places.items()]
        raise Refusal(f"{place}: {len(problems)} of {num_rows} rows cannot be used: {listed(texts, MOST_NAMED, separator='; ')}")


def records(path: Path, columns: Named, *, encoding: str = encodings.UTF8) -> list[Numbered]:
    """Return the number of the line of each row of a table, and its values in `columns`, a dict by column. Blank lines are skipped.

    Raises Refusal if the file cannot be parsed, has no rows, or lacks a column, or if a row has more or fewer fields than the first row.
    """
    place, suffix = f"source.root: {shown(path)}", suffix_of(path)
    if suffix in NAMED_SUFFIXES and any(isinstance(column, int) for _, column in columns):
        keys = [key for key, column in columns if isinstance(column, int) and key]
        if not keys:
            raise Refusal("its columns have names, but the model knows its columns by numbers: write a CSV without a line of names")
        raise Refusal(f"{keys[0]}: the columns of {shown(path)} have names, not numbers: set {' and '.join(keys)} to names of its columns")
    if suffix == parquet.SUFFIX:
        found = list(parquet.rows(path, list(dict.fromkeys(column for _, column in columns))))
    else:
        found = list(records_of(read_text(path, encoding=encoding), suffix, place, columns))
    if not found:
        raise Refusal(f"{place}: {NO_ROWS}")
    return found


def records_of(content: str, suffix: str, place: str, columns: Named) -> Iterator[Numbered]:
    """Yield the records of the text of a table with this suffix. Raises Refusal, which begins with `place`, as `records` does."""
    rows = PARSERS.get(suffix, lines.parsed)(content, place)
    yield from json_rows(rows, place, columns) if suffix in (*JSON_LINES, ".json") else keyed(rows, place, columns)


def names(path: Path, *, encoding: str = encodings.UTF8) -> list[str]:
    """Return the names of the columns of a table: those in the first line, the keys of the first row, or those of Parquet that hold single values.

    Raises Refusal if the file cannot be parsed.
    """
    if suffix_of(path) == parquet.SUFFIX:
        return parquet.plain_columns(path)
    first = next(parsed(path, encoding), None)
    return [] if first is None else [str(name) for name in first]


def unread(path: Path, *, encoding: str = encodings.UTF8) -> list[str]:
    """Return the columns that `names` leaves out: those of Parquet with images or nested values, and keys that the first row of JSON lacks."""
    known, suffix = names(path, encoding=encoding), suffix_of(path)
    if suffix == parquet.SUFFIX:
        with parquet.opened(path) as file:
            every = list(file.schema_arrow.names)
    elif suffix in (*JSON_LINES, ".json"):
        every = [name for fields in parsed(path, encoding) if isinstance(fields, dict) for name in fields]
    else:
        return []
    return [name for name in dict.fromkeys(map(str, every)) if name not in known]


def parsed(path: Path, encoding: str) -> Iterator[Any]:
    """Yield the fields of each row of a table of text that is not blank, by position or by name, with the first line."""
    rows = PARSERS.get(suffix_of(path), lines.parsed)(read_text(path, encoding=encoding), f"source.root: {shown(path)}")
    return (fields for _, fields in rows if isinstance(fields, dict) or any(fields))


def is_empty(text: object) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())


def checked_text(text: object, place: str, remedy: str = "write a text, or remove the row or file") -> str:
    """Return `text` unchanged. Raises Refusal if it is empty, not a string, has a NUL, or has more than LONGEST_FIELD characters.

    `place` is the file, and the line if there is one, for the message. `remedy` is what to do about an empty text.
    """
    if is_empty(text):
        raise Refusal("has an empty text", remedy=remedy, place=place)
    if not isinstance(text, str):
        raise Refusal("has a text that is not a string", remedy="write a text, or remove the row or file", place=place)
    encodings.refuse_nul(text, place)
    if len(text) > LONGEST_FIELD:
        raise Refusal(f"has a text of {len(text)} characters, more than {LONGEST_FIELD}", remedy="shorten or divide it", place=place)
    return text


def parsed_tsv(content: str, place: str) -> Iterator[tuple[int, list[str]]]:  # noqa: ARG001  # as the other parsers
    for line, fields in enumerate(content.split("\n"), 1):
        yield line, fields.removesuffix("\r").split("\t")


def parsed_csv(content: str, place: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    excel = EXCEL.match(content)
    content, before = (content[excel.end() :], 1) if excel else (content, 0)
    separator = excel[1] if excel else csv_separator(content)
    if separator == BLANKS:
        yield from enumerate(map(str.split, content.split("\n")), 1)
        return
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True)
    line = 1 + before
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + 1 + before  # where the next row begins: a quoted field may have line breaks
    except csv.Error as error:
        raise Refusal(f"{place}:{line}: is not valid CSV ({reason(error)}): quote fields with line breaks, quotes or commas") from None


def csv_separator(content: str) -> str:
    """Return the first of SEPARATORS by which all first rows have the same number of fields, at least two; a comma if none does.

    BLANKS separate fields only if those of a column are numbers: they may also be words of one text.
    """
    for sign in SEPARATORS + BLANKS:
        try:
            rows = first_rows(content, sign)
        except csv.Error:
            continue
        counts = {len(fields) for fields in rows}
        if len(counts) == 1 and counts != {1} and (sign != BLANKS or any(map(all, numbers_in(rows)))):
            return sign
    return SEPARATORS[0]


def first_rows(content: str, sign: str) -> list[list[str]]:
    """Return the fields of the first rows that are not blank, divided by `sign`. Raises csv.Error."""
    start = content[:SAMPLED_CHARACTERS]
    rows = (
        [line.split() for line in start.split("\n")] if sign == BLANKS else list(csv.reader(io.StringIO(start, newline=""), delimiter=sign))
    )
    complete = rows if start == content else rows[:-1]  # the last row may end in the middle
    return [fields for fields in complete if any(fields)]


def numbers_in(rows: Sequence[Sequence[str]]) -> list[tuple[bool, ...]]:
    """Return for each column of `rows` which of its fields below the first are numbers."""
    return list(zip(*([as_number(field) is not None for field in fields] for fields in rows[1:]), strict=True))


def holds_numbers(path: Path, encoding: str) -> bool:
    """Return True if a file, by its name no table, is one in which more than half of the fields are numbers."""
    content = read_text(path, encoding=encoding)
    try:
        found = numbers_in(first_rows(content, csv_separator(content)))
    except (csv.Error, ValueError):  # rows of different lengths
        return False
    return len(found) > 1 and 2 * sum(map(sum, found)) > sum(map(len, found))


def keyed(rows: Iterator[tuple[int, list[str]]], place: str, columns: Named) -> Iterator[Numbered]:
    """Yield the line number of each row, and a dict with its fields in `columns`.

    `rows` gives the line number and all fields of each row. Raises Refusal if one of `columns` does not occur exactly once, or if a row has
    more or fewer fields than the first row. The first is MissingColumn.
    """
    filled = ((line, fields) for line, fields in rows if any(fields))
    first, names = next(filled, (1, list[str]()))
    by_name = all(isinstance(column, str) for _, column in columns)
    known: list[Any] = names if by_name else list(range(1, len(names) + 1))
    for key, column in columns:
        if not names:
            raise MissingColumn(f"{place}: {NO_ROWS}", column)
        if known.count(column) != 1:
            raise MissingColumn(
                f"{key}: is {shown(column)}, but {place.removeprefix('source.root: ')}:{first} has the columns {shown(', '.join(map(str, known)))}: write one of these "
                "(it must not occur twice); if the first line has no column names, write the number of the column, from 1",
                column,
            )
    positions = {column: known.index(column) for _, column in columns}
    for line, fields in filled if by_name else chain([(first, names)], filled):
        if len(fields) != len(names):
            raise Refusal(f"{place}:{line}: has {len(fields)} columns, but line {first} has {len(names)}: make them equal")
        yield line, {column: fields[position] for column, position in positions.items()}


def json_rows(rows: Iterator[Numbered], place: str, columns: Named) -> Iterator[Numbered]:
    for number, (line, fields) in enumerate(rows):
        missing = [column for _, column in columns if not isinstance(fields, dict) or column not in fields]
        if missing:
            keys = " and ".join(str(column) for _, column in columns)
            problem = f"{place}:{line}: has no key {shown(missing[0])}: write one object per line with the keys {keys}"
            raise Refusal(problem) if number else MissingColumn(problem, missing[0])
        yield line, fields


def parsed_json(content: str, place: str) -> Iterator[Numbered]:
    for line, item in enumerate(content.split("\n"), 1):
        if item.strip():
            try:
                fields = json.loads(item)
            except (ValueError, RecursionError) as error:
                raise Refusal(f"{place}:{line}: is not valid JSON ({reason(error)}): write one object per line") from None
            yield line, fields


def parsed_document(content: str, place: str) -> Iterator[Numbered]:
    """Yield the number of each row, from 1, and its fields, of a JSON file: a list of rows, a list for each split, or a list for each column.

    A row is an object, or a list, whose fields get numbers from 1. The name of its list is one more field, SPLIT_FIELD or the last. A file
    that is no JSON as a whole has a row in each line.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        yield from parsed_json(content, place)
        return
    lists = {name: value for name, value in data.items() if isinstance(value, list)} if isinstance(data, dict) else {}
    of_rows = {name: items for name, items in lists.items() if items and all(isinstance(item, dict | list) for item in items)}
    rows: list[Any]
    if lists and not of_rows:
        if len(lengths := {len(items) for items in lists.values()}) > 1:
            raise Refusal(f"{place}: has lists of {min(lengths)} to {max(lengths)} values: make the columns equally long")
        rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    elif of_rows.keys() == {"data"} and "columns" in lists:  # as pandas writes a table
        rows = [dict(zip(lists["columns"], fields, strict=False)) for fields in of_rows["data"]]
    elif of_rows:
        rows = [
            {SPLIT_FIELD: name, **item} if isinstance(item, dict) else [*item, name]
            for name, items in of_rows.items()
            for item in items
            if item
        ]
    elif isinstance(data, list):
        rows = data
    else:
        raise Refusal(f"{place}: is neither a list of objects nor an object with lists: write a list of objects, or one object per line")
    for number, item in enumerate(rows, 1):
        if not isinstance(item, dict | list):
            raise Refusal(f"{place}: has {shown(item, 60)} where a row is expected: write a list of objects, or one object per line")
        yield number, dict(enumerate(item, 1)) if isinstance(item, list) else item


SPLIT_FIELD = "split"
PARSERS: dict[str, Callable[[str, str], Iterator[Numbered]]] = {
    ".tsv": parsed_tsv,
    ".csv": parsed_csv,
    **dict.fromkeys(JSON_LINES, parsed_json),
    ".json": parsed_document,
}
FORMATS = (*PARSERS, parquet.SUFFIX)
"""The suffixes of tables. In a `.tsv` no field is quoted; in a `.csv` a field in quotes may have line breaks, and the separator is found."""
