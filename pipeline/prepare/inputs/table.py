"""Finds what the columns of a table hold, and computes what their description needs from the train split."""

import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from pipeline.core.cells import LARGEST, Floats, Format, Kind, as_category, is_constant, kind_of_format
from pipeline.core.cells import read as read_cell
from pipeline.core.raw_dataset import TRAIN, SampleBlock
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.inputs.table.description import (
    LONGEST_VALUE,
    MOST_COLUMNS,
    MOST_KNOTS,
    MOST_VALUES,
    CategoryColumn,
    Mark,
    NumberColumn,
    TableInputs,
)
from pipeline.prepare.params import SourceSettings
from pipeline.prepare.reading.arrow_cells import Cells, by_value, is_missing, plain_numbers
from pipeline.prepare.reading.formats import read as read_cells

Scale = Literal["standardized", "ranks"]
Columns = Annotated[tuple[Column, ...], Field(max_length=MOST_COLUMNS)]
BLOCK_ROWS = 65_536


class TableSettings(SourceSettings):
    """Settings of a source of rows with several columns as inputs. What a column holds is found from the rows of train, and can be said."""

    inputs: ClassVar[str] = "table"

    number_columns: Columns
    """Columns of numbers, beside those in which all cells with a value are numbers; `[]` for no others."""
    category_columns: Columns
    """Columns of categories, such as a code of digits, beside those of texts that repeat; `[]` for no others."""
    date_columns: Columns
    """Columns of dates, beside those in which all cells with a value are dates in the form of ISO 8601; `[]` for no others."""
    ignored_columns: Columns
    """Columns that are not used, beside those in which more than half of the rows have different texts, all have the same value, or the rows are numbered."""
    formats: tuple[tuple[Column, Format], ...]
    """Columns, each with the format of its numbers or dates, beside those whose format is found; `[]` for no others. A format of numbers is the number 1234.5 as
    the column writes it, such as `[price, "$1,234.5"]` or `[weight, 1234.5 kg]`; one of dates is that of `strptime`, such as `[opened, "%d/%m/%Y"]`."""
    missing: tuple[Mark, ...]
    """Texts of cells without a value in any column, such as `["-999", unknown]`, beside those that always mean it; `[]` for no others."""
    numbers: Scale
    """How a model reads numbers and dates: `standardized` by their mean and standard deviation in train, or by their `ranks` in train, mapped to a standard
    normal distribution, which suits numbers of which few are far larger than the others."""

    RECOMMENDED: ClassVar = {
        "number_columns": [],
        "category_columns": [],
        "date_columns": [],
        "ignored_columns": [],
        "formats": [],
        "missing": [],
        "numbers": "standardized",
    }
    ADDED: ClassVar = {"numbers": "standardized", "formats": [], "missing": []}

    @field_validator("formats")
    @classmethod
    def refuse_unfit_formats(cls, formats: tuple[tuple[Column, Format], ...], info: ValidationInfo) -> tuple[tuple[Column, Format], ...]:
        for name, written in formats:
            others = [key for key, kind in OF_KIND.items() if name in info.data.get(key, ()) and kind != kind_of_format(written)]
            if others or [each for each, _ in formats].count(name) > 1:
                raise ValueError(
                    f"has {shown(name, 60)} twice, or source.{(*others, 'formats')[0]} has it, too: remove it from one of them"
                )
        return formats

    @field_validator("category_columns", "date_columns", "ignored_columns")
    @classmethod
    def refuse_repeated(cls, names: Columns, info: ValidationInfo) -> Columns:
        others = {name: key for key in (*OF_KIND, "ignored_columns") if key != info.field_name for name in info.data.get(key, ())}
        if repeated := [name for name in names if name in others]:
            raise ValueError(f"has {shown(repeated[0], 60)}, which {others[repeated[0]]} has, too: remove it from one of them")
        return names

    def said_kind(self, name: Column) -> Kind | None:
        """Return what the settings say that a column holds, if they do."""
        if written := dict(self.formats).get(name):
            return kind_of_format(written)
        return next((kind for key, kind in OF_KIND.items() if name in getattr(self, key)), None)


OF_KIND: dict[str, Kind] = {"number_columns": "number", "category_columns": "category", "date_columns": "date"}
KINDS: tuple[Kind, ...] = ("number", "date", "category")


class Part(NamedTuple):
    """A column that is an input. `written` is the format of numbers or dates."""

    name: Column
    kind: Kind
    written: str = ""


Faulty = Callable[[NDArray[np.bool_], Refusal], None]
"""Is told which rows of a block cannot be used, and why."""


class Statistics:
    """Holds the values of the columns of all rows in a temporary file, column by column, and makes the description of the rows.

    `add_rows` fills it, each split in the order of its rows. Nothing is computed while they are stored: `fit` has done it.
    """

    dtype: ClassVar[type[np.generic]] = TableInputs.dtype

    def __init__(
        self, parts: Sequence[Part], counts: Mapping[str, int], scale: Scale = "standardized", marks: tuple[str, ...] = ()
    ) -> None:
        """`counts` has the number of rows of each split of the source, and `marks` the texts of cells without a value, which are null here."""
        self.parts, self.counts, self.scale, self.marks, self.row_shape = parts, counts, scale, marks, (len(parts),)
        self.num_rows = sum(counts.values())
        self.starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        """The number of the row at which the values of each split begin."""
        self.categories = [dict[str, int]() for _ in parts]
        """The number that stands for each text of a column of categories until `fit`."""
        self.filled = 0

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Return the values (columns, rows): numbers, days, numbers of texts, or NaN."""
        with tempfile.TemporaryFile(prefix="table-") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, len(self.parts) * self.num_rows * 8))  # else a full disk would end the process
            self.mapped = mmap.mmap(file.fileno(), 0)
        return np.frombuffer(self.mapped, np.float64).reshape(len(self.parts), self.num_rows)

    def release(self) -> None:
        """Give back the memory of the values that were read or written: they are in the file."""
        self.mapped.madvise(mmap.MADV_DONTNEED)

    def add_rows(self, split: str, first: int, columns: Sequence[Cells], faulty: Faulty = lambda rows, refusal: None) -> Floats:  # noqa: ARG005
        """Add the cells of consecutive rows of a split, and return their values (rows, columns). `first` is the position of the first in the split.

        Call `faulty` with rows that have no number or date where one belongs.
        """
        found = np.stack([self.read(part, at, cells, faulty) for at, (part, cells) in enumerate(zip(self.parts, columns, strict=True))])
        start = self.starts[split] + first
        self.values[:, start : start + found.shape[1]] = found
        self.release()
        self.filled += found.shape[1]
        return found.T

    def read(self, part: Part, at: int, cells: Cells, faulty: Faulty) -> Floats:
        if part.kind == "number" and not part.written and (plain := plain_numbers(cells)) is not None:
            return plain
        missing = is_missing(cells)
        if part.kind == "category":
            read, numbers_of = by_value(cells, as_category), self.categories[at]
            known = np.array([numbers_of.setdefault(str(value), len(numbers_of)) for value in read.values], np.float64)
            return np.where(missing, np.nan, known[read.numbers])
        found = read_cells(cells, part.kind, part.written)
        if (wrong := np.isnan(found) & ~missing).any():
            read = by_value(cells.filter(pa.array(wrong)), lambda cell: read_cell(part.kind, cell, part.name, part.written))
            for number, refusal in read.problems.items():
                rows = wrong.copy()
                rows[wrong] = read.numbers == number
                faulty(rows, refusal)
        return found

    def keys(self, rows: Floats) -> NDArray[np.uint64]:
        """Return numbers for the values of rows (n, columns), which are equal for equal values: those of numbers, and hashes of texts."""
        found = (np.where(np.isnan(rows), 0.0, rows) + 0.0).view(np.uint64)  # no negative zero
        found[np.isnan(rows)] = 1
        for at, (part, known) in enumerate(zip(self.parts, self.categories, strict=True)):
            if part.kind == "category":
                hashes = np.array([int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in known] or [0], np.uint64)
                found[:, at] = np.where(np.isnan(rows[:, at]), 1, hashes[np.nan_to_num(rows[:, at]).astype(np.int64)])
        return found

    def fit(self, assigned: Mapping[str, NDArray[np.str_]]) -> None:
        """Describe the columns by the rows that go to train. `assigned` has the final split of each row of each split of the source."""
        in_train, columns = np.concatenate([assigned[split] == TRAIN for split in self.counts]), list[NumberColumn | CategoryColumn]()
        for part, known, values in zip(self.parts, self.categories, self.values, strict=True):
            columns.append(described(part, [*known], values[in_train], self.scale))
            self.release()
        self.described = TableInputs(columns=tuple(columns), marks=self.marks)

    def blocks(self) -> Generator[SampleBlock]:
        """Yield all rows in the form in which they are stored. `fit` must be called before."""
        columns = [
            (column.stored_numbers([*known]) if isinstance(column, CategoryColumn) else None)
            for column, known in zip(self.described.columns, self.categories, strict=True)
        ]
        for split, count in self.counts.items():
            for first in range(0, count, BLOCK_ROWS):
                start, size = self.starts[split] + first, min(BLOCK_ROWS, count - first)
                found = np.array(self.values[:, start : start + size])
                self.release()
                for at, stored in enumerate(columns):
                    if stored is not None:
                        known = ~np.isnan(found[at])
                        found[at, known] = stored[found[at, known].astype(np.int64)]
                yield SampleBlock(split, np.arange(first, first + size), np.ascontiguousarray(found.T))

    def summarize(self, rows: NDArray[Any]) -> None:
        """Return None: `fit` has seen the rows of train."""

    def add(self, summary: None) -> None:
        """Do nothing, for the same reason."""

    def inputs(self) -> TableInputs:
        return self.described


def described(part: Part, categories: Sequence[str], values: Floats, scale: Scale = "standardized") -> NumberColumn | CategoryColumn:
    """Return the description of a column by its values in train. If all numbers are equal, apart from rounding, the standard deviation is given as 1.

    `categories` are the texts for which the numbers of a column of categories stand.
    """
    known = values[~np.isnan(values)]
    missing = len(known) < len(values)
    if part.kind == "category":
        counts = np.bincount(known.astype(np.int64), minlength=len(categories))
        occurring = [(text, int(count)) for text, count in zip(categories, counts, strict=True) if count]
        frequent = sorted((entry for entry in occurring if len(entry[0]) <= LONGEST_VALUE), key=lambda entry: (-entry[1], entry[0]))
        kept = tuple(text for text, _ in frequent[:MOST_VALUES])
        return CategoryColumn(name=part.name, missing=missing, values=kept, others=len(kept) < len(occurring))
    found = known if len(known) else np.zeros(1)
    if is_constant(found):  # the mean of equal numbers may be rounded
        mean, std, found = float(found[0]), 1.0, found[:1]
    else:
        unit = 1.0 if np.ptp(found) > 1 / LARGEST else np.ptp(found)  # the squares of numbers below 1e-162 are 0
        mean, std = float(found.mean()), float((found / unit).std() * unit)
    knots = knots_of(found) if scale == "ranks" else ()
    extremes = float(found.min()), float(found.max())
    found_kind = {"kind": part.kind, "name": part.name, "missing": missing, "format": part.written}
    return NumberColumn(**found_kind, mean=mean, std=std, knots=knots, extremes=extremes)


def knots_of(numbers: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return up to MOST_KNOTS of the different `numbers`, ascending, with the normal number of their rank. Equal numbers share their mean rank."""
    different, counts = np.unique(numbers, return_counts=True)
    ranks, normal = (counts.cumsum() - counts / 2) / len(numbers), NormalDist()
    low, high = (normal.inv_cdf(float(rank)) for rank in ranks[[0, -1]])
    between = [normal.cdf(float(number)) for number in np.linspace(low, high, MOST_KNOTS)[1:-1]]
    chosen = {0, *ranks.searchsorted(between).tolist(), len(ranks) - 1} - {len(ranks)}
    return tuple((float(different[at]), normal.inv_cdf(float(ranks[at]))) for at in sorted(chosen))
