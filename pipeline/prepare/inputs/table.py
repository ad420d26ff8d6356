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
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from pipeline.core.cells import COMMA, LARGEST, WITHOUT_COMMA, Floats, Kind, as_category, is_constant, is_too_large
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
    NumberColumn,
    TableInputs,
)
from pipeline.prepare.params import SourceSettings
from pipeline.prepare.reading.cells import Cells, by_value, dates, is_missing, numbers, plain_numbers, texts
from pipeline.prepare.reading.json_rows import is_nested

Scale = Literal["standardized", "ranks"]
Columns = Annotated[tuple[Column, ...], Field(max_length=MOST_COLUMNS)]
MOSTLY = 0.9
"""A column of which so many cells are numbers or dates, but not all, has mistakes or marks of missing values."""
MOST_DIFFERENT = 0.5
"""A column of texts of which more are different, such as names, is no column of categories."""
FEWEST_COUNTED = 10
BLOCK_ROWS = 65_536


class LeftOut(NamedTuple):
    """Why a column is not used."""

    reason: str


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
    numbers: Scale
    """How a model reads numbers and dates: `standardized` by their mean and standard deviation in train, or by their `ranks` in train, mapped to a standard
    normal distribution, which suits numbers of which few are far larger than the others."""

    RECOMMENDED: ClassVar = {
        "number_columns": [],
        "category_columns": [],
        "date_columns": [],
        "ignored_columns": [],
        "numbers": "standardized",
    }
    ADDED: ClassVar = {"numbers": "standardized"}

    @field_validator("category_columns", "date_columns", "ignored_columns")
    @classmethod
    def refuse_repeated(cls, names: Columns, info: ValidationInfo) -> Columns:
        others = {name: key for key in (*OF_KIND, "ignored_columns") if key != info.field_name for name in info.data.get(key, ())}
        if repeated := [name for name in names if name in others]:
            raise ValueError(f"has {shown(repeated[0], 60)}, which {others[repeated[0]]} has, too: remove it from one of them")
        return names

    def said_kind(self, name: Column) -> Kind | None:
        """Return what the settings say that a column holds, if they do."""
        return next((kind for key, kind in OF_KIND.items() if name in getattr(self, key)), None)


OF_KIND: dict[str, Kind] = {
    "number_columns": "number",
    "category_columns": "category",
    "date_columns": "date",
}
KINDS: tuple[Kind, ...] = ("number", "date", "category")
VALUES: tuple[Kind, ...] = ("number", "date")


INDICES = ("Unnamed: 0", "__index_level_0__")
"""The names of the index of rows that pandas adds to CSV and Parquet files. It has gaps where rows were removed before."""
FEW_ROWS = 1000
MOST_DIFFERENT_TEXTS, MOST_DIFFERENT_BYTES = 100_000, 2**24
"""A column of more different texts, or of more bytes of such, is no column of categories, however many rows there are."""
FIRST_WRITTEN, LAST_WRITTEN = 10_000_101, 99_991_231
"""The first and the last date, written as a number."""


class Survey:
    """Gathers what the rows of train say about a column, in little memory: how many cells are numbers or dates, their range, and their texts."""

    def __init__(self, name: Column) -> None:
        self.name, self.rows, self.known = name, 0, 0
        self.counts = {"number": 0, "date": 0, "large": 0, "comma": 0}
        self.examples = dict[str, str]()
        """The first cell that is no number, that is no date, that is a large number, and that has a comma."""
        self.low, self.high = dict.fromkeys(KINDS, np.inf), dict.fromkeys(KINDS, -np.inf)
        self.texts: Cells | None = pa.array([], pa.string())
        """The different texts, while they are at most MOST_DIFFERENT_TEXTS."""
        self.whole: list[Floats] | None = []
        """All numbers, while they are whole and different: they may number the rows."""
        self.labels: dict[Any, int] | None = {}
        """The label of each text, while each has its own."""
        self.known_of_label = np.zeros(0, np.int64)

    def add(self, cells: Cells, labels: NDArray[np.int64] | None) -> None:
        """Add the cells of some rows. `labels` are the numbers of their classes; None if the labels are no classes."""
        found = plain_numbers(cells)
        known = ~is_missing(cells) if found is None else np.ones(len(cells), bool)
        self.rows, self.known = self.rows + len(known), self.known + int(known.sum())
        if labels is not None:
            self.known_of_label = added(self.known_of_label, np.bincount(labels[known]))
        if not known.any():
            return
        cells = cells if known.all() else cells.filter(pa.array(known))
        found = numbers(cells) if found is None else found
        self.add_values("number", found, cells)
        if self.whole is not None:
            are_whole = bool((found == np.floor(found)).all()) and len(np.unique(found)) == len(found)
            self.whole = [*self.whole, found] if are_whole else None
        if len(others := cells.filter(pa.array(np.isnan(found)))):
            self.add_others(others)
        may_be_dates = np.isnan(found) | ((found >= FIRST_WRITTEN) & (found <= LAST_WRITTEN))  # of the numbers, only those such as 20240105
        days = np.full(len(found), np.nan)
        if may_be_dates.any():
            days[may_be_dates] = dates(cells.filter(pa.array(may_be_dates)))
        self.add_values("date", days, cells)
        if self.texts is not None:
            several = pc.unique(pa.concat_arrays([self.texts, texts(pc.unique(cells))]))
            self.texts = several if len(several) <= MOST_DIFFERENT_TEXTS and several.nbytes <= MOST_DIFFERENT_BYTES else None
        self.labels = None if labels is None else self.with_labels(texts(cells), labels[known])

    def add_values(self, kind: Kind, found: Floats, cells: Cells) -> None:
        are_values = ~np.isnan(found)
        self.counts[kind] += int(are_values.sum())
        if are_values.any():
            self.low[kind], self.high[kind] = min(self.low[kind], np.nanmin(found)), max(self.high[kind], np.nanmax(found))
        if not are_values.all():
            self.examples.setdefault(kind, str(cells[int(np.argmin(are_values))].as_py()))

    def add_others(self, cells: Cells) -> None:
        """Count numbers that are too large, and those with commas, among cells that are no numbers."""
        for name, question in {"large": is_too_large, "comma": lambda text: bool(COMMA.fullmatch(text.strip()))}.items():
            found = by_value(cells, question)
            self.counts[name] += int(np.array(found.values, bool)[found.numbers].sum())
            if name not in self.examples and any(found.values):
                self.examples[name] = str(cells[int(np.argmax(found.numbers == found.values.index(True)))].as_py())

    def with_labels(self, cells: Cells, labels: NDArray[np.int64]) -> dict[Any, int] | None:
        """Return the label of each text so far, or None if one has two."""
        for few in (slice(0, FEW_ROWS), slice(0, None)):  # nearly all columns are decided by a few rows
            if self.labels is None:
                return None
            found = cells[few].dictionary_encode()
            pairs = np.unique(np.stack([found.indices.to_numpy().astype(np.int64), labels[few]]), axis=1)
            if pairs.shape[1] > len(found.dictionary):
                return None
        values = found.dictionary.to_pylist()
        known = {values[number]: label for number, label in pairs.T.tolist()}
        is_same = all(self.labels.get(value, label) == label for value, label in known.items()) if self.labels is not None else False
        return {**(self.labels or {}), **known} if is_same and len({*known.values()}) == len(known) else None

    def kind(self, place: str, said: Kind | None) -> Kind | LeftOut:
        """Return what the column holds, or the reason not to use it: see `TableSettings.kind_of`."""
        if said:
            return said
        if self.texts is not None and self.known and all(map(is_nested, self.texts.slice(0, FEW_ROWS).to_pylist())):
            return LeftOut("nested values")
        different = MOST_DIFFERENT_TEXTS + 1 if self.texts is None else len(self.texts)
        if self.texts is not None and self.counts["number"] < self.known:
            different = len({*map(as_category, self.texts.to_pylist())})
        if different + (self.known < self.rows) < 2:
            return LeftOut("the same value in all rows" if self.known else "no value in any row")
        self.refuse_mistakes(place)
        for kind in VALUES:
            if self.counts[kind] == self.known:
                return self.usable(kind)
        if different > MOST_DIFFERENT * self.known or self.texts is None:
            many = f"more than {MOST_DIFFERENT_TEXTS} or long" if self.texts is None else different
            return LeftOut(f"{many} different texts in {self.known} rows")
        return "category"

    def refuse_mistakes(self, place: str) -> None:
        """Raise Refusal if most cells are numbers or dates, and others are not."""
        if self.counts["number"] == self.known:
            return
        name, ways = shown(self.name, 60), "or add the column to source.category_columns or source.ignored_columns"
        if self.counts["comma"] and self.counts["number"] + self.counts["comma"] == self.known:
            problem = f"has numbers with a comma in the column {name}, such as {shown(self.examples['comma'], 40)}"
            raise Refusal(problem, remedy=f"{WITHOUT_COMMA}, {ways}", place=place)
        if self.counts["large"] and self.counts["number"] + self.counts["large"] > MOSTLY * self.known:
            # a text such as 5636e188, among other codes, is no number
            problem = f"has numbers above {LARGEST:g} in the column {name}, such as {shown(self.examples['large'], 40)}"
            raise Refusal(problem, remedy="write it in another unit, or add it to source.ignored_columns", place=place)
        for kind in VALUES:
            if 0 < (wrong := self.known - self.counts[kind]) <= (1 - MOSTLY) * self.known:
                problem = f"has {kind}s in the column {name}, but in {wrong} of {self.known} rows something else, such as {shown(self.examples[kind], 40)}"
                raise Refusal(problem, remedy=f"write {kind}s there, or nothing, {ways}", place=place)

    def usable(self, kind: Kind) -> Kind | LeftOut:
        extremes = np.array([self.low[kind], self.high[kind]])
        if is_constant(extremes) and self.known == self.rows:
            return LeftOut("the same value in all rows, apart from rounding")
        if kind == "number" and self.whole is not None:
            if self.name in INDICES:
                return LeftOut("the index that pandas adds")
            if count_rows(np.concatenate(self.whole)):
                return LeftOut("it numbers the rows")
        return kind

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Return sentences about a column that may be known only after the label. `names` are those of the classes, by their numbers."""
        name, found = shown(self.name, 40), []
        if self.labels and len(self.labels) == len({*self.labels.values()}) == np.count_nonzero(self.known_of_label) > 1:
            found.append("has one value for each label")
        elif self.known < self.rows and np.count_nonzero(self.known_of_label) == 1 < len(names):
            found.append(f"has values only in rows of {shown(names[int(self.known_of_label.argmax())], 40)}")
        return [
            f"warning: the column {name} {what}: if it is not known before the label, add source.ignored_columns=[{name}]" for what in found
        ]


def added(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of two arrays, of which one may be shorter."""
    total = np.zeros(max(len(counts), len(more)), np.int64)
    total[: len(counts)] += counts
    total[: len(more)] += more
    return total


def count_rows(found: Floats) -> bool:
    """Return True if whole numbers number the rows, in any order: they are all different, with few gaps."""
    if len(found) < FEWEST_COUNTED or len(np.unique(found)) < len(found):
        return False
    return bool(np.ptp(found) < 2 * len(found))


class Part(NamedTuple):
    """A column that is an input."""

    name: Column
    kind: Kind


Faulty = Callable[[NDArray[np.bool_], Refusal], None]
"""Is told which rows of a block cannot be used, and why."""


class Statistics:
    """Holds the values of the columns of all rows in a temporary file, column by column, and makes the description of the rows.

    `add_rows` fills it, each split in the order of its rows. Nothing is computed while they are stored: `fit` has done it.
    """

    dtype: ClassVar[type[np.generic]] = TableInputs.dtype

    def __init__(self, parts: Sequence[Part], counts: Mapping[str, int], scale: Scale = "standardized") -> None:
        """`counts` has the number of rows of each split of the source."""
        self.parts, self.counts, self.scale, self.row_shape = parts, counts, scale, (len(parts),)
        self.num_rows = sum(counts.values())
        self.starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        """Where the values of each split begin."""
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
        if part.kind == "number" and (plain := plain_numbers(cells)) is not None:
            return plain
        missing = is_missing(cells)
        if part.kind == "category":
            read, numbers_of = by_value(cells, as_category), self.categories[at]
            known = np.array([numbers_of.setdefault(str(value), len(numbers_of)) for value in read.values], np.float64)
            return np.where(missing, np.nan, known[read.numbers])
        found = (numbers if part.kind == "number" else dates)(cells)
        if (wrong := np.isnan(found) & ~missing).any():
            read = by_value(cells.filter(pa.array(wrong)), lambda cell: read_cell(part.kind, cell, part.name))
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
        self.described = TableInputs(columns=tuple(columns))

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
    return NumberColumn(kind=part.kind, name=part.name, missing=missing, mean=mean, std=std, knots=knots, extremes=extremes)


def knots_of(numbers: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return up to MOST_KNOTS of the different `numbers`, ascending, with the normal number of their rank. Equal numbers share their mean rank."""
    different, counts = np.unique(numbers, return_counts=True)
    ranks, normal = (counts.cumsum() - counts / 2) / len(numbers), NormalDist()
    low, high = (normal.inv_cdf(float(rank)) for rank in ranks[[0, -1]])
    between = [normal.cdf(float(number)) for number in np.linspace(low, high, MOST_KNOTS)[1:-1]]
    chosen = {0, *ranks.searchsorted(between).tolist(), len(ranks) - 1} - {len(ranks)}
    return tuple((float(different[at]), normal.inv_cdf(float(ranks[at]))) for at in sorted(chosen))
