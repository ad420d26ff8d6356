"""Rows of JSON: one object on a line, or a document that is a list of rows, a list for each split, or a list for each column."""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading.delimited import CHUNK_ROWS, filled_lines
from pipeline.prepare.reading.streams import TextBlock, read_text

SPLIT_FIELD, TRANSLATION = "split", "translation"
MOST_CHARACTERS = 256 * 2**20
"""Upper bound for a document, which is held in memory; JSON lines have none."""
Fields = Mapping[Column, Any]
Row = TypeVar("Row")


def of_lines(blocks: Iterable[TextBlock], place: str) -> Generator[tuple[int, Fields]]:
    """Yield the number of each line that is not blank, and its object."""
    for line, item in filled_lines(blocks):
        try:
            fields = json.loads(item)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"{place}:{line}: is not valid JSON ({reason(error)}): write one object per line") from None
        if not isinstance(fields, dict):
            raise Refusal(f"{place}:{line}: has {shown(item, 60)} where an object is expected: write one object per line")
        yield line, with_translation(fields)


def of_document(blocks: Iterable[TextBlock], place: str) -> Generator[tuple[int, Fields]]:
    """Yield the number of each row, from 1, and its fields.

    A row is an object, or a list, whose fields get numbers from 1. The name of its list is one more field, SPLIT_FIELD or the last. A file
    that is no JSON as a whole has a row in each line. Raises Refusal if it has neither, or more than MOST_CHARACTERS.
    """
    text = read_text(blocks, place, MOST_CHARACTERS, "write one object per line, and call it .jsonl")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        yield from of_lines([TextBlock(1, text)], place)
        return
    for number, item in enumerate(rows_in(data, place), 1):
        if not isinstance(item, dict | list):
            raise Refusal(f"{place}: has {shown(item, 60)} where a row is expected: write a list of objects, or one object per line")
        yield number, dict(enumerate(item, 1)) if isinstance(item, list) else with_translation(item)


def with_translation(fields: dict[str, Any]) -> dict[Column, Any]:
    """Return the fields of a row. As data sets of Hugging Face have them, the texts in several languages may be in an object TRANSLATION."""
    known = dict[Column, Any]()
    known.update(fields)
    texts = known.get(TRANSLATION)
    if isinstance(texts, dict):
        del known[TRANSLATION]
        known |= texts
    return known


def rows_in(data: Any, place: str) -> list[Any]:
    lists = {name: value for name, value in data.items() if isinstance(value, list)} if isinstance(data, dict) else {}
    of_rows = {name: items for name, items in lists.items() if items and all(isinstance(item, dict | list) for item in items)}
    if {"images", "annotations"} <= of_rows.keys():
        raise Refusal(f"{place}: has annotations of images in the form of COCO, which no source reads: write a table of images and labels")
    most = sum(map(len, of_rows.values()))
    keyed = [name for name, value in data.items() if is_keyed(value) and len(value) > most] if isinstance(data, dict) else []
    if of_rows and keyed:
        both = f"the list {shown(next(iter(of_rows)), 60)} and in the object {shown(keyed[0], 60)}"
        raise Refusal(f"{place}: has objects in {both}: write a list of the rows")
    if lists and not of_rows:
        if len(lengths := {len(items) for items in lists.values()}) > 1:
            raise Refusal(f"{place}: has lists of {min(lengths)} to {max(lengths)} values: make the columns equally long")
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    if of_rows.keys() == {"data"} and "columns" in lists:  # as pandas writes a table
        return [dict(zip(lists["columns"], fields, strict=False)) for fields in of_rows["data"]]
    if of_rows:
        return [
            {SPLIT_FIELD: name, **item} if isinstance(item, dict) else [*item, name]
            for name, items in of_rows.items()
            for item in items
            if item
        ]
    if not isinstance(data, list):
        raise Refusal(f"{place}: is neither a list of objects nor an object with lists: write a list of objects, or one object per line")
    return data


def is_keyed(value: Any) -> bool:
    """Return True for an object of several objects with equal keys, as rows by their ids are."""
    rows = [*value.values()] if isinstance(value, dict) else []
    return len(rows) > 1 and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)


def several(rows: Iterable[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
    """Yield the rows in lists of at most CHUNK_ROWS."""
    remaining = iter(rows)
    while found := list(islice(remaining, CHUNK_ROWS)):
        yield found


def column_of(rows: Iterable[tuple[int, Fields]], column: Column, place: str) -> Any:
    """Return the values of a column as an Arrow array of strings: a number as Python writes it, a list or object as JSON."""
    values = [cell_text(fields[column]) for _, fields in rows]
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError as error:
        line = next(line for (line, _), value in zip(rows, values, strict=True) if value == error.object)
        raise Refusal(f"{place}:{line}: has a half of a character (a lone surrogate) in {shown(column, 60)}: remove it") from None


def is_nested(text: str) -> bool:
    """Return True if a cell has a list or an object, as JSON."""
    try:
        return text.lstrip()[:1] in {"[", "{"} and isinstance(json.loads(text), list | dict)
    except (ValueError, RecursionError):
        return False


def cell_text(value: Any) -> str | None:
    """Return what a value of JSON is in a table of text: None if it is null, `true` or `false`, and JSON of a list or an object."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, bool | list | dict) else str(value)
