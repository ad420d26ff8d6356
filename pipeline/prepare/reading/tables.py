"""Reads texts: whole files in UTF-8, and tables (CSV, TSV, JSON lines, Parquet) row by row."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading import parquet

MOST_BYTES = 256 * 2**20
"""Upper bound for a file of text, which is read into memory as a whole."""


def read_text(path: Path, most_bytes: int | None = None) -> str:
    """Return the text of a file. Raises Refusal if it cannot be read, has more than `most_bytes`, by default MOST_BYTES, or is not UTF-8."""
    most = most_bytes or MOST_BYTES
    try:
        content = untrusted.read(path, most)
    except OSError as error:
        raise Refusal(
            f"source.root: {shown(path)}: cannot be read ({error.strerror}): make it a readable file of at most {most} bytes"
        ) from None
    return decode(content, shown(path))


def decode(content: bytes, place: str) -> str:
    """Return `content`, the bytes of a file, as text. A byte order mark is removed. `place` names the file in messages.

    Raises Refusal, which names the line, if the bytes are not valid UTF-8 or contain a NUL character.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Refusal(
            f"source.root: {place}:{line}: is not UTF-8 (byte 0x{error.object[error.start]:02X}): convert the file, such as by "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Refusal(f"source.root: {place}:{line}: has a NUL character, so it is no text: remove it, or leave out the file")
    return text


LONGEST_FIELD = 2**20
"""Upper bound for the number of characters of a field."""
LONGEST_LABEL = 255
JSON_SUFFIXES = (".jsonl", ".ndjson")
NAMED_SUFFIXES = (*JSON_SUFFIXES, parquet.SUFFIX)
"""Tables whose columns always have names."""
Column = Annotated[str, Field(min_length=1, max_length=255)] | Annotated[int, Field(ge=1, le=1000)]
"""A column by its name in the first line, or by its number from 1 in a file without such a line."""
Columns = Mapping[str, Column]
"""Columns to read, by the key of the section `source` that names each: first that of the text, or path, and then that of the label."""
Record = tuple[int, Any]
"""The number of a line, and the fields of its row by position or by name."""


class Row(NamedTuple):
    """A labelled text and the number of its line, from 1."""

    line: int
    text: str
    label: str


def read(path: Path, columns: Columns) -> list[Row]:
    """Return the labelled texts of a table. The suffix of `path` must be one of FORMATS. Blank lines are skipped.

    `columns` has the column of the text and that of the label, in this order: two names, or two numbers. Raises Refusal if the file cannot be
    parsed, has no rows, or lacks a column. Raises Refusal with the line if a row has more or fewer columns than the first row, or if its
    text or label is invalid.
    """
    place = f"source.root: {shown(path)}"
    (text_key, text), (label_key, label) = columns.items()
    if path.suffix.lower() in NAMED_SUFFIXES and isinstance(text, int):
        raise Refusal(
            f"source.{text_key}: the columns of {shown(path)} have names, not numbers: "
            f"set source.{text_key} and source.{label_key} to names of its columns"
        )
    rows = [
        Row(line, checked_text(fields[text], f"{place}:{line}"), checked_label(fields[label], f"{place}:{line}"))
        for line, fields in FORMATS[path.suffix.lower()](path, place, columns)
    ]
    if not rows:
        raise Refusal(f"{place}: has no rows: add some, or remove the file")
    return rows


def checked_text(text: object, place: str) -> str:
    """Return `text` unchanged. Raises Refusal if it is not a string, is empty, or has more than LONGEST_FIELD characters.

    `place` is the file, and the line if there is one, for the message.
    """
    if not isinstance(text, str) or not text.strip():
        raise Refusal(f"{place}: has an empty text, or a text that is not a string: write a text, or remove the row or file")
    if len(text) > LONGEST_FIELD:
        raise Refusal(f"{place}: has a text of {len(text)} characters, more than {LONGEST_FIELD}: shorten or divide it")
    return text


def checked_label(label: object, place: str) -> str:
    """Return the label as a string, without white space around it. `place` is its file and line, for the message.

    Raises Refusal if the label is no string, whole number or truth value, is empty, cannot be printed, or has more than LONGEST_LABEL
    characters.
    """
    name = json.dumps(label) if isinstance(label, bool) else str(label).strip() if isinstance(label, str | int) else ""
    if not name or not name.isprintable() or len(name) > LONGEST_LABEL:
        raise Refusal(
            f"{place}: has the label {shown(json.dumps(label, default=str), 60)}: write printable text or a whole number, "
            f"at most {LONGEST_LABEL} characters"
        )
    return name


def tsv(path: Path, place: str, columns: Columns) -> Iterator[Record]:
    return keyed(parsed_tsv(read_text(path)), place, columns)


def parsed_tsv(content: str) -> Iterator[tuple[int, list[str]]]:
    for line, fields in enumerate(content.split("\n"), 1):
        yield line, fields.removesuffix("\r").split("\t")


def csv_rows(path: Path, place: str, columns: Columns) -> Iterator[Record]:
    return keyed(parsed_csv(read_text(path), place), place, columns)


def parsed_csv(content: str, place: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    line = 1
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + 1  # where the next row begins: a quoted field may have line breaks
    except csv.Error as error:
        raise Refusal(f"{place}:{line}: is not valid CSV ({reason(error)}): quote fields with line breaks, quotes or commas") from None


def keyed(rows: Iterator[tuple[int, list[str]]], place: str, columns: Columns) -> Iterator[Record]:
    """Yield the line number of each row, and a dict with its fields in `columns`.

    `rows` gives the line number and all fields of each row. Raises Refusal if one of `columns` does not occur exactly once, or if a row has
    more or fewer fields than the first row.
    """
    filled = ((line, fields) for line, fields in rows if any(fields))
    first, names = next(filled, (1, [""]))
    by_name = all(isinstance(column, str) for column in columns.values())
    known: list[Any] = names if by_name else list(range(1, len(names) + 1))
    for key, column in columns.items():
        if known.count(column) != 1:
            raise Refusal(
                f"source.{key}: is {shown(column)}, but {place.removeprefix('source.root: ')}:{first} has the columns {shown(', '.join(map(str, known)))}: write one of these "
                "(it must not occur twice); if the first line has no column names, write the number of the column, from 1"
            )
    positions = {column: known.index(column) for column in columns.values()}
    for line, fields in filled if by_name else chain([(first, names)], filled):
        if len(fields) != len(names):
            raise Refusal(f"{place}:{line}: has {len(fields)} columns, but line {first} has {len(names)}: make them equal")
        yield line, {column: fields[position] for column, position in positions.items()}


def json_lines(path: Path, place: str, columns: Columns) -> Iterator[Record]:
    for line, fields in parsed_json(read_text(path), place):
        missing = [column for column in columns.values() if not isinstance(fields, dict) or column not in fields]
        if missing:
            keys = " and ".join(map(str, columns.values()))
            raise Refusal(f"{place}:{line}: has no key {shown(missing[0])}: write one object per line with the keys {keys}")
        yield line, fields


def parsed_json(content: str, place: str) -> Iterator[tuple[int, Any]]:
    for line, item in enumerate(content.split("\n"), 1):
        if item.strip():
            try:
                fields = json.loads(item)
            except (ValueError, RecursionError) as error:
                raise Refusal(f"{place}:{line}: is not valid JSON ({reason(error)}): write one object per line") from None
            yield line, fields


def parquet_rows(path: Path, place: str, columns: Columns) -> Iterator[Record]:  # noqa: ARG001  # as the other formats
    return parquet.rows(path, [*columns.values()])


FORMATS: dict[str, Callable[[Path, str, Columns], Iterator[Record]]] = {
    ".tsv": tsv,
    ".csv": csv_rows,
    **dict.fromkeys(JSON_SUFFIXES, json_lines),
    parquet.SUFFIX: parquet_rows,
}
"""The suffixes of tables. In a `.tsv` no field is quoted; in a `.csv` a field in quotes may have line breaks."""
