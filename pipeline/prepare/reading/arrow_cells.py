"""Reads whole columns of cells: which are missing, plain numbers or dates of ISO 8601. Each different value of a block is read once.

Numbers and dates in other forms, such as `1.234,5 EUR`, are read in `formats.py`.

A column is an Arrow array of strings, or of float64 where the file stores floating-point numbers. Null is a cell without a value.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.cells import LARGEST, MISSING, as_date, as_number
from pipeline.core.refusal import Refusal

Meaning = TypeVar("Meaning")
Cells = Any
"""An Arrow array."""
MISSING_TEXTS = pa.array(sorted(MISSING))


class Read(NamedTuple, Generic[Meaning]):
    """The meanings of the cells of a column. `values` are those of the different cells, in the order in which they occur first, and
    `numbers` (n,) the position in `values` of each cell. `problems` has the Refusal of each value that has no meaning, by its position.
    """

    values: list[Meaning]
    numbers: NDArray[np.int64]
    problems: dict[int, Refusal]


def by_value(cells: Cells, read: Callable[[Any], Any]) -> Read[Any]:
    """Return what `read` returns for each different cell, a str or None. A value for which it raises Refusal means None, and is a problem."""
    encoded = texts(cells).dictionary_encode(null_encoding="encode")
    values, problems = list[Any](), dict[int, Refusal]()
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(read(value))
        except Refusal as refusal:
            values.append(None)
            problems[number] = refusal
    return Read(values, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), problems)


def faulty_rows(found: Read[Any]) -> list[tuple[NDArray[np.int64], Refusal]]:
    """Return the numbers of the rows with each value that is a problem, and the problem."""
    if not found.problems:
        return []
    order = np.argsort(found.numbers, kind="stable")
    starts = np.searchsorted(found.numbers[order], np.arange(len(found.values) + 1))
    return [(order[starts[number] : starts[number + 1]], refusal) for number, refusal in found.problems.items()]


def texts(cells: Cells) -> Cells:
    """Return the cells as strings. Floating-point numbers become what Python writes, so that a CSV and a Parquet file of equal values are equal."""
    if not pa.types.is_floating(cells.type):
        return cells
    encoded = cells.dictionary_encode()
    written = pa.array([None if value is None else str(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return written.take(encoded.indices)


def is_missing(cells: Cells) -> NDArray[np.bool_]:
    """Return True for each cell that has no value: null, NaN, or one of MISSING, blanks around it apart."""
    if pa.types.is_floating(cells.type):
        return np.asarray(np.isnan(cells.to_numpy(zero_copy_only=False)), bool)
    return mask(pc.is_in(pc.utf8_trim_whitespace(cells), MISSING_TEXTS)) | mask(cells.is_null())


def is_empty(cells: Cells) -> NDArray[np.bool_]:
    """Return True for each cell that is null or has blanks alone."""
    return mask(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts(cells)), ""), fill_value=True))


def without(cells: Cells, marks: Sequence[str]) -> Cells:
    """Return the cells with null in place of `marks`, texts that mean no value. A mark that is a number stands for this number, too, where the file stores numbers."""
    if not marks:
        return cells
    if pa.types.is_floating(cells.type):
        numbers = [number for mark in marks if (number := as_number(mark)) is not None]
        return pc.if_else(pc.is_in(cells, pa.array(numbers, pa.float64())), None, cells)
    return pc.if_else(pc.is_in(pc.utf8_trim_whitespace(cells), pa.array([mark.strip() for mark in marks])), None, cells)


def mask(found: Cells) -> NDArray[np.bool_]:
    """Return an Arrow array of truth values as one of NumPy; null is False."""
    return np.asarray(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), bool)


def numbers(cells: Cells) -> NDArray[np.float64]:
    """Return the number in each cell, as `as_number` reads it; NaN where there is none."""
    found = plain_numbers(cells)
    if found is None and not pa.types.is_floating(cells.type):
        trimmed = pc.utf8_trim_whitespace(cells)
        known = pc.if_else(pc.is_in(trimmed, MISSING_TEXTS), None, trimmed)
        found = plain_numbers(known.drop_null())
        if found is not None:
            every = np.full(len(cells), np.nan)
            every[~mask(known.is_null())] = found
            return every
        read = by_value(cells, as_number)
        return np.array([np.nan if value is None else value for value in read.values] or [np.nan])[read.numbers]
    if found is None:
        found = np.array(cells.to_numpy(zero_copy_only=False), np.float64)
        found[~(np.abs(found) <= LARGEST)] = np.nan
    return found


def plain_numbers(cells: Cells) -> NDArray[np.float64] | None:
    """Return the number in each cell, or None if not every cell has one that Arrow and Python read alike."""
    if cells.null_count:
        return None
    try:
        pc.cast(cells.slice(0, 1), pa.float64())  # Arrow makes an error for each cell that is no number, which takes long
        found = np.asarray(pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    except pa.ArrowInvalid:
        return None
    return found if (np.abs(found) <= LARGEST).all() else None  # Arrow reads `infinity`, too


def dates(cells: Cells) -> NDArray[np.float64]:
    """Return the days since 1970 of each cell, as `as_date` reads it; NaN where there is no date."""
    found = by_value(cells, as_date)
    return np.array([np.nan if value is None else value for value in found.values] or [np.nan])[found.numbers]
