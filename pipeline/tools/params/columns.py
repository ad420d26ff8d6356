"""Finds out which columns of a table hold the texts or images, and which one the labels. Values decide, not the names of columns."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import suggestion
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import parquet, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES

MOST_ROWS = 20_000
"""The number of rows that are looked at."""
MOST_LABELS = 1000
SAMPLED_PATHS = 20
MOST_LISTED = 8
IMAGES, LABELS, TEXTS = "image_column", "label_column", "text_column"
"""The keys of the section `source` that name a column."""
WORDS = {IMAGES: "the images", LABELS: "the labels", TEXTS: "the texts"}


class Table(NamedTuple):
    """The first rows of a table by column. The columns have numbers from 1 if the file has no line of names."""

    columns: Mapping[str | int, list[Any]]
    holds_images: frozenset[str] = frozenset()
    """The columns of a Parquet file with encoded images."""


def read(path: Path) -> Table:
    """Read the first rows of a table. Raises Refusal if it cannot be parsed, or has no row."""
    place, suffix = f"source.root: {shown(path)}", path.suffix.lower()
    if suffix == parquet.SUFFIX:
        return read_parquet(path)
    if suffix in tables.JSON_SUFFIXES:
        found = [fields for _, fields in islice(tables.parsed_json(tables.read_text(path), place), MOST_ROWS)]
        rows = [fields for fields in found if isinstance(fields, dict)]
        return Table({key: [row.get(key) for row in rows] for key in (rows[0] if rows else {})})
    text = tables.read_text(path)
    parsed = tables.parsed_csv(text, place) if suffix == ".csv" else tables.parsed_tsv(text)
    lines = [fields for _, fields in islice(parsed, MOST_ROWS + 1) if any(fields)]
    if len(lines) < 2:
        raise Refusal(f"{place}: has no rows: add some")
    first, *others = lines
    columns = [[row[number] for row in others if number < len(row)] for number in range(len(first))]
    if has_names(first, columns):
        return Table({name: values for name, values in zip(first, columns, strict=True) if name})
    return Table({number: [name, *values] for number, (name, values) in enumerate(zip(first, columns, strict=True), 1)})


def read_parquet(path: Path) -> Table:
    with parquet.opened(path) as file:
        schema = file.schema_arrow
        images = frozenset(name for name in schema.names if parquet.is_image_column(schema.field(name).type))
        plain = [name for name in schema.names if name not in images and parquet.is_plain(schema.field(name).type)]
    rows = [row for _, row in islice(parquet.rows(path, plain), MOST_ROWS)]
    return Table({name: [row[name] for row in rows] for name in plain}, images)


def has_names(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return True if `first`, the first line, has the names of `columns`: two or more, none repeated or a label of the rows below it.

    A column without a name is one that a program added, such as the number of the row.
    """
    names = [name for name in first if name]
    labels = [name for name, values in zip(first, columns, strict=True) if is_label(values) and name in values]
    return len(names) > 1 and len(set(names)) == len(names) and not labels


def is_text(values: Sequence[Any]) -> bool:
    """Return True for texts: strings of two words or more on average, most of them different."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) <= len(values) / 2:
        return False
    return sum(len(text.split()) for text in texts) >= 2 * len(texts) and len(set(texts)) > len(texts) / 3


def is_label(values: Sequence[Any]) -> bool:
    """Return True for labels: at least two different strings, whole numbers or truth values, each of which three rows have on average."""
    known = [value for value in values if value not in (None, "")]
    if not known or not all(isinstance(value, str | int) for value in known):
        return False
    return 2 <= len(set(known)) <= min(MOST_LABELS, max(2, len(known) // 3)) and not is_text(values) and not fraction(values)


def fraction(values: Sequence[Any]) -> Any:
    """Return the first value that is a number with a fraction, such as 0.5 or "0.5", or None if some value is no number or none is."""
    try:
        numbers = {value: float(value) for value in values if value not in (None, "")}
    except (TypeError, ValueError, OverflowError):
        return None
    return next((value for value, number in numbers.items() if number % 1), None)


def is_path(values: Sequence[Any], folder: Path) -> bool:
    """Return True for paths, relative to `folder`, of image files that exist."""
    names = [value for value in values if isinstance(value, str)][:: max(1, len(values) // SAMPLED_PATHS)]
    with suppress(OSError):  # a name that is too long
        return bool(names) and all(name.lower().endswith(IMAGE_SUFFIXES) and (folder / name).is_file() for name in names)
    return False


def paths(table: Table, folder: Path) -> list[str | int]:
    return [name for name, values in table.columns.items() if is_path(values, folder)]


def texts(table: Table) -> list[str | int]:
    return [name for name, values in table.columns.items() if is_text(values)]


def chosen(path: Path, table: Table, key: str, given: Mapping[str, Any], fits: Callable[[Sequence[Any]], bool]) -> str | int:
    """Return the column for `key` of the section `source`: the one that `given` names, or else the only one whose values fit.

    Raises Refusal if the given column does not exist, or if none or several fit.
    """
    names: list[str | int] = [*table.columns, *table.holds_images]
    if key in given:
        column: str | int = given[key]
        if column not in names:
            raise Refusal(
                f"source.{key}={shown(column, 60)}: {shown(path)} has no such column: {suggestion(column, tuple(map(str, names)))}"
            )
        if key == LABELS and (value := fraction(table.columns.get(column, []))) is not None:
            raise Refusal(
                f"source.{key}={shown(column, 60)}: has numbers with fractions, such as {shown(value, 20)}: store classes as names or whole numbers"
            )
        return column
    found = [name for name, values in table.columns.items() if fits(values)]
    if len(found) == 1:
        return found[0]
    if found:
        ways = " or ".join(f"source.{key}={described(name, table.columns[name], key)}" for name in found[:MOST_LISTED])
        raise Refusal(f"data={path}: {len(found)} columns may hold {WORDS[key]}: add {ways}")
    listing = listed([f"{shown(name, 60)} ({kind(table, name)})" for name in names], MOST_LISTED)
    raise Refusal(
        f"data={path}: no column looks like {WORDS[key]}: its columns are {listing}: if one of them holds them, add source.{key}=NAME"
    )


def described(name: str | int, values: Sequence[Any], key: str) -> str:
    return f"{shown(name, 60)} ({len(set(values))} different values)" if key == LABELS else shown(name, 60)


def kind(table: Table, name: str | int) -> str:
    """Describe the values of a column in a few words."""
    values = table.columns.get(name)
    if values is None:
        return "images"
    if (value := fraction(values)) is not None:
        return f"numbers with fractions, such as {shown(value, 20)}"
    return "texts" if is_text(values) else f"{len(set(map(str, values)))} different values"
