"""Says what the cells of a column can be: texts, labels, several labels, numbers, truth values, or names of images."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa

from pipeline.core.cells import as_date, as_number, as_truth, is_missing, kind_of_format
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.formats import Formats
from pipeline.prepare.reading.formats import read as read_cells
from pipeline.prepare.reading.labels import labels_of_cell
from pipeline.tools.params.texts import num_words

MOST_ROWS = 5000
"""The number of rows that are looked at, over the whole length of the table."""
MOST_LABELS = 1000
SAMPLED_TEXTS = 200
LONGEST_LABEL = 60
DELIMITERS = (";", "|", ",", " ")
FEWEST_SOURCES, MOST_REFERENCES = 10, 20
"""Source texts with several references: so many at least, and at most so many references for each on average."""
PHRASE, MANY = 3, 100
"""Names of classes have fewer words, and if they have one, there are fewer of them."""
LETTER = re.compile(r"[^\W\d_]|[^\x00-\x7f]")
QUANTITY = re.compile(r"\W*\d[\d.,]*\s?[^\W\d_]{1,3}\W*")
"""A number with a unit, such as `512 kg`."""


def filled(values: Sequence[Any]) -> list[Any]:
    """Return the cells that have a value."""
    return [value for value in values if value not in (None, "")]


def sampled(rows: list[Any], most: int = MOST_ROWS) -> list[Any]:
    """Return at most `most` of the rows at equal distances: a table may be sorted."""
    return rows[:: -(-len(rows) // most)] if rows else rows


def is_text(values: Sequence[Any]) -> bool:
    """Return True for texts: strings of two words or more on average, most of them different, and no names of image files, dates or numbers, in whatever format."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) <= len(values) / 2 or are_image_names(texts) or not have_words(texts):
        return False
    return sum(map(num_words, texts)) >= 2 * len(texts) and len(set(texts)) > len(texts) / 3 and not format_of(texts)


def have_words(texts: Sequence[str]) -> bool:
    """Return True if most of the texts have letters, or other signs beyond ASCII, and are no dates and no numbers with a unit."""
    some = sampled([*texts], SAMPLED_TEXTS)
    return 2 * sum(bool(LETTER.search(text)) and not QUANTITY.fullmatch(text) and as_date(text) is None for text in some) > len(some)


def is_label(values: Sequence[Any]) -> bool:
    """Return True for labels: at least two different strings, whole numbers or truth values, each of which three rows have on average."""
    known = filled(values)
    if not known or not all(isinstance(value, str | int) or (isinstance(value, float) and value.is_integer()) for value in known):
        return False
    return 2 <= len(set(known)) <= min(MOST_LABELS, max(2, len(known) // 3)) and not is_text(values) and not fraction(values)


def numbers(values: Sequence[Any]) -> list[float] | None:
    """Return the numbers in the cells that have a value, plain or in a format that fits all; None if one of them has something else."""
    found = [as_number(value) for value in values if not is_missing(value)]
    if None not in found:
        return cast("list[float]", found)
    written = format_of(values)
    if not written or kind_of_format(written) != "number":
        return None
    return read_cells(pa.array([str(value) for value in values if not is_missing(value)]), "number", written).tolist()  # type: ignore[no-any-return]


def format_of(values: Sequence[Any]) -> str:
    """Return a format of numbers or dates that fits all cells that have a value, or "" if none does, or if they are plain."""
    known = [str(value) for value in values if not is_missing(value)]
    formats = Formats.of(pa.array(known, pa.string())) if known and known[0] and any(map(str.isdigit, known[0])) else Formats()
    return next(iter(formats.found()), "") if not formats.words else ""


def fraction(values: Sequence[Any]) -> float | None:
    """Return the first number with a fraction, such as 0.5, if all cells that have a value are numbers."""
    return next((number for number in numbers(values) or () if number % 1), None)


def are_numbers(values: Sequence[Any]) -> bool:
    """Return True for numbers, at least three different ones, that do not just count the rows."""
    found = numbers(values) or []
    counts_rows = found == sorted(set(found)) and all(number.is_integer() for number in found)
    return len(set(found)) > 2 and not counts_rows


def are_image_names(values: Sequence[Any]) -> bool:
    names = [str(value).strip().lower() for value in filled(values)]
    return sum(name.endswith(IMAGE_SUFFIXES) for name in names) > len(names) / 2


def are_strings(values: Sequence[Any]) -> bool:
    """Return True for strings that are no numbers, dates or names of images, most of them different."""
    return is_varied(values) and have_words(filled(values))


def is_varied(values: Sequence[Any]) -> bool:
    """Return True for strings, most of them different, that are no names of images."""
    known = filled(values)
    return all(isinstance(value, str) for value in known) and len(set(known)) > len(known) / 3 and not are_image_names(known)


def recurs(values: Sequence[Any]) -> bool:
    """Return True for texts that stand in several rows each, but in fewer than a class does: phrases, or what stands in one run of rows."""
    known = filled(values)
    different = len(set(known))
    if not FEWEST_SOURCES <= different <= len(known) / 2 or len(known) > MOST_REFERENCES * different or not have_words(known):
        return False
    words = sum(map(num_words, known)) / len(known)
    num_runs = 1 + sum(one != other for one, other in pairwise(known))
    return words >= PHRASE or (num_runs <= 1.05 * different and (words >= 2 or different > MANY))


def is_mark(values: Sequence[Any]) -> bool:
    """Return True for truth values, such as 0 and 1, if both occur."""
    return {as_truth(value) for value in set(map(str, values))} == {False, True}


def delimiter_of(values: Sequence[Any]) -> str | None:
    """Return what separates the labels in each cell; "" if the cells are lists of labels, and None if they are something else.

    Each label must occur in three cells on average, and twice in none, and there must be as many different cells as labels: some labels occur alone, or with
    several others. For words, there must be twice as many; texts are not divided, nor numbers with a decimal comma.
    """
    known = filled(values)
    if known and all(labels_of_cell(value, None) != [value] for value in known):
        return "" if are_labels([labels_of_cell(value, None) for value in known]) else None
    if not known or not all(isinstance(value, str) for value in known):
        return None
    for sign in DELIMITERS:
        if not any(sign in value for value in known):
            continue
        cells = [labels_of_cell(value, sign) for value in known]
        most, num_labels = max(map(len, cells)), len({label for cell in cells for label in cell})
        are_decimals = sign == "," and most == 2 and all(label.isdigit() for cell in cells for label in cell)
        fewest = 2 * num_labels if sign == " " else num_labels  # names of classes, such as `good` and `very good`, share words
        if most > 1 and fewest <= len(set(known)) and are_labels(cells) and not are_decimals:
            return None if sign == " " and is_text(values) else sign
    return None


def are_labels(cells: Sequence[Sequence[Any]]) -> bool:
    """Return True if the items of the lists can be labels: short, each at most once in a list, and in three lists on average."""
    items = [item for cell in cells for item in cell]
    if not all(isinstance(item, str | int) and len(str(item)) <= LONGEST_LABEL for item in items):
        return False
    return 2 <= len(set(items)) <= min(MOST_LABELS, len(items) // 3) and all(len(set(cell)) == len(cell) for cell in cells)


def division(values: Sequence[Any]) -> tuple[int, ...]:
    """Return for each cell the position of the first one that equals it: the same for columns that divide the rows in the same way."""
    first = dict[Any, int]()
    return tuple(first.setdefault(value, position) for position, value in enumerate(values))
