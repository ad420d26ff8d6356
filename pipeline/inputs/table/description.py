"""Describes the rows of a table: its columns of numbers, dates and categories, with what turns a cell into a stored number."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pipeline.core import spec
from pipeline.core.cells import DAY, EPOCH, LATEST, NUMBER_FORMAT, ROUNDING, SECOND, Floats, Format, Kind, as_category
from pipeline.core.refusal import Refusal

MOST_COLUMNS = 4096
MOST_VALUES = 255
"""Up to so many values of a column of categories are told apart: the most frequent ones. All others are one more value."""
LONGEST_VALUE = 255
MOST_KNOTS = 100


Mark = Annotated[str, Field(min_length=1, max_length=LONGEST_VALUE)]


class Column(BaseModel):
    """Describes a column. `missing` is True if cells of train have no value: the model then gets one more feature that says so.

    Each kind has three methods. `stored` returns the number that is stored for a value that `read` returned, NaN for None. `cell` returns a
    cell for which a number is stored. `random` returns random stored numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Kind
    name: str | int
    missing: bool


class NumberColumn(Column):
    """Describes a column of numbers, or of dates, whose numbers are days since 1970. `mean` and `std` are those of the train split.

    `knots` are numbers of train, ascending, each with the number of a standard normal distribution that has the same rank. The model reads them
    instead of standardised numbers, with straight lines between two knots. They are empty if the numbers are standardised. `extremes` are the
    least and the largest number of train; None in the files of earlier versions. `format` is that of the cells, "" for plain numbers and dates.
    """

    kind: Literal["number", "date"]
    mean: float
    std: Annotated[float, Field(gt=0)]
    knots: Annotated[tuple[tuple[float, float], ...], Field(max_length=MOST_KNOTS)] = Field(default=(), exclude_if=lambda knots: not knots)
    extremes: tuple[float, float] | None = Field(default=None, exclude_if=lambda extremes: extremes is None)
    format: Format | Literal[""] = Field(default="", exclude_if=lambda written: not written)

    @property
    def unit(self) -> str:
        """Return what stands before and after the numbers; "" for dates, which mean the same in each format."""
        found = NUMBER_FORMAT.fullmatch(self.format)
        return f"{found['prefix']}{found['suffix']}".strip() if found else ""

    def are_far(self, stored: Floats) -> NDArray[np.bool_]:
        """Return True for each number that is outside of those of train, by more than train spans."""
        low, high = self.extremes or (-math.inf, math.inf)
        span = max(high - low, ROUNDING * max(abs(low), abs(high)))
        found: NDArray[np.bool_] = (stored < low - span) | (stored > high + span)
        return found

    def stored(self, value: float | str | None) -> float:
        return math.nan if value is None else float(value)

    def cell(self, stored: float) -> float | str | None:
        if math.isnan(stored) or self.kind == "number":
            return None if math.isnan(stored) else stored
        return (EPOCH + round(min(stored, LATEST) * DAY / SECOND) * SECOND).isoformat().removesuffix("T00:00:00")

    def random(self, generator: np.random.Generator, count: int) -> Floats:
        return generator.normal(self.mean, self.std, count)


class CategoryColumn(Column):
    """Describes a column of categories. The stored number of a value is its position in `values`, the most frequent first.

    All other values have the number after the last one. `others` is True if train has such: the model then gets a feature for them.
    """

    kind: Literal["category"] = "category"
    values: Annotated[tuple[Annotated[str, Field(max_length=LONGEST_VALUE)], ...], Field(max_length=MOST_VALUES)]
    others: bool

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {as_category(value): number for number, value in enumerate(self.values)}

    def stored(self, value: float | str | None) -> float:
        return math.nan if value is None else self.numbers.get(str(value), len(self.values))

    def stored_numbers(self, texts: Sequence[str]) -> Floats:
        """Return the stored number of each of several texts."""
        return np.array([self.numbers.get(text, len(self.values)) for text in texts], np.float64)

    def cell(self, stored: float) -> str | None:
        return None if math.isnan(stored) else (*self.values, "another value")[int(stored)]

    def random(self, generator: np.random.Generator, count: int) -> Floats:
        return generator.integers(0, max(1, len(self.values) + self.others), count).astype(np.float64)


class TableInputs(spec.Inputs):
    """Describes rows of a table with a number for each column, float64: large numbers that differ little would be equal in float32.

    NaN stands for a cell without a value. The model turns each row into features, `num_features` floats: see
    `pipeline.inputs.table.first_layer`.
    """

    dtype: ClassVar[type[np.generic]] = np.float64

    kind: Literal["table"] = "table"
    columns: Annotated[
        tuple[Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")], ...], Field(min_length=1, max_length=MOST_COLUMNS)
    ]
    marks: tuple[Mark, ...] = Field(default=(), exclude_if=lambda marks: not marks)
    """Texts of cells without a value, beside MISSING."""

    @classmethod
    def example(cls) -> Self:
        """Return the description of a column of numbers and one of categories."""
        number = NumberColumn(kind="number", name="number", missing=False, mean=0.0, std=1.0)
        return cls(columns=(number, CategoryColumn(name="category", missing=False, values=("a", "b"), others=False)))

    @property
    def row_shape(self) -> tuple[int]:
        return (len(self.columns),)

    @property
    def columns_read(self) -> tuple[tuple[str | int, str], ...]:
        return tuple((column.name, column.kind) for column in self.columns)

    @property
    def categories(self) -> list[tuple[int, int]]:
        """Return the number of the column and the stored number of each category that is a feature."""
        return [
            (at, number)
            for at, column in enumerate(self.columns)
            if isinstance(column, CategoryColumn)
            for number in range(len(column.values) + column.others)
        ]

    @property
    def num_features(self) -> int:
        """Return how many features a row has: one for each number or date, one for each category, and those for missing values."""
        return sum(isinstance(column, NumberColumn) + column.missing for column in self.columns) + len(self.categories)

    def reads_samples_of(self, other: spec.Inputs) -> bool:
        """Return True if the stored numbers mean the same: the columns, their kinds and their categories are equal."""
        return isinstance(other, TableInputs) and meaning(self) == meaning(other)

    def enlarged_if_other(self, new: spec.Description | None) -> Self | None:
        def features(inputs: TableInputs) -> list[Any]:
            return [*meaning(inputs), *((column.missing, getattr(column, "others", False)) for column in inputs.columns)]

        if isinstance(new, TableInputs) and features(self) == features(new):
            return None
        more = NumberColumn(kind="number", name="one more", missing=False, mean=0.0, std=1.0)
        return self.model_copy(update={"columns": (*self.columns, more)})

    def random_samples(self, count: int) -> Floats:
        """Return `count` rows of random numbers and categories. Every call with the same `count` returns the same rows."""
        generator = np.random.default_rng(0)
        return np.stack([column.random(generator, count) for column in self.columns], axis=1)

    def refuse_zero(self, names: Iterable[Any]) -> None:
        """Raise Refusal if the columns have numbers, and `names`, those of the columns of given rows, begin with 0: all would be one column off."""
        if isinstance(self.columns[0].name, int) and "0" in map(str, names):
            raise Refusal("has a column 0, but the columns of this model are numbered from 1", remedy="add 1 to the number of each column")


def meaning(inputs: TableInputs) -> list[Any]:
    return [(column.kind, column.name, getattr(column, "values", getattr(column, "unit", ""))) for column in inputs.columns]


Inputs = TableInputs
