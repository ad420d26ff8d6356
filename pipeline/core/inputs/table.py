"""Describes the rows of a table: its columns of numbers, dates and categories, with what turns a cell into a stored number."""

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pipeline.core import spec
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import canonical, shown

Kind = Literal["number", "category", "date"]
MISSING = frozenset({"", "?", "NA", "N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None"})
"""The texts of cells that have no value."""
TRUTH = {
    **dict.fromkeys(("1", "1.0", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "0.0", "false", "f", "no", "n"), False),
}
"""The truth values that texts mean, in lower case."""
MOST_COLUMNS = 4096
MOST_VALUES = 255
"""Up to so many values of a column of categories are told apart: the most frequent ones. All others are one more value."""
LONGEST_VALUE = 255
MOST_KNOTS = 100
LARGEST = 1e100
"""A larger number is refused: the squares of such numbers would not fit into float64. Those of differences fit down to its inverse."""
ROUNDING, SMALLEST = 1e-14, 1e-300
"""Numbers that differ by at most such a share of the largest, or at most by SMALLEST, are equal apart from rounding, as 0.3 and 0.1 + 0.2 are."""
DAY, SECOND = datetime.timedelta(days=1), datetime.timedelta(seconds=1)
EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  # dates without a time zone are those of UTC
LATEST = (datetime.datetime(9999, 12, 31) - EPOCH) / DAY  # noqa: DTZ001  # as EPOCH
NUMBER_FORMAT = re.compile(r"(?P<prefix>[^\d%()+\n-]{0,12})1(?P<thousands>[,.' ]?)234(?P<decimal>[.,])5(?P<suffix>[^\d()+\n-]{0,14})")
DIRECTIVE = re.compile(r"%(.)")
Floats = NDArray[np.float64]


def kind_of_format(written: str) -> Literal["number", "date"]:
    """Return what is written in a format. Raises ValueError if it is none."""
    number, names = NUMBER_FORMAT.fullmatch(written), DIRECTIVE.findall(written)
    if number and number["thousands"] != number["decimal"]:
        return "number"
    has_all = all(len({*several} & {*names}) == 1 for several in ("d", "mbB", "yY"))
    if (
        not has_all
        or not {*names} <= {*"dmbByYHIMSp"}
        or len({*names}) < len(names)
        or ("I" in names) != ("p" in names)
        or {"H", "I"} <= {*names}
    ):
        example = (
            "write the number 1234.5 as the column writes it, such as $1,234.5 or 1.234,5 EUR, or the parts of a date, such as %d/%m/%Y"
        )
        raise ValueError(f"{shown(written, 40)} is no format: {example}")
    return "date"


def checked_format(written: str) -> str:
    kind_of_format(written)
    return written


Format = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(checked_format)]
"""How a column writes numbers or dates: the number 1234.5 as it is written there, such as `$1,234.5`, or a date as for `strptime`, such as `%d/%m/%Y`."""
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
    `pipeline.inference.inputs.table`.
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

    def enlarged_if_other(self, new: spec.Description) -> Self | None:
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


def read(kind: Kind, cell: Any, name: str | int, written: str = "") -> float | str | None:
    """Return the value of a cell of a column of this kind: a number, the days of a date since 1970, or the text of a category.

    Return None if the cell has no value. Raises Refusal if it is no number or date. `name` and `written`, the format, are those of the column, for the message.
    """
    if is_missing(cell):
        return None
    value = {"number": as_number, "date": as_date, "category": as_category}[kind](cell)
    if value is None:
        problem = f"has {shown(cell, 60)} in the column {shown(name, 60)}"
        raise Refusal(problem, remedy=wanted(kind, written))
    return value


def wanted(kind: Kind, written: str) -> str:
    """Say how to write a value of this kind, in the format `written` if the column has one."""
    return f"write a {kind}{f' as in {written}' * bool(written)}, or leave the cell empty"


def is_constant(numbers: Floats) -> bool:
    """Return True if all `numbers` (n,) are equal, apart from rounding."""
    return bool(np.ptp(numbers) <= max(ROUNDING * np.abs(numbers).max(), SMALLEST))


def is_missing(cell: Any) -> bool:
    return str(cell).strip() in MISSING


def as_truth(cell: Any) -> bool | None:
    """Return the truth value that a cell means, such as True for `1`, `yes` or `True`; None if it means none."""
    return TRUTH.get(canonical(str(cell)).lower())


def as_number(cell: Any) -> float | None:
    """Return the finite number in a cell, or None if it has none. Truth values are no numbers, nor is `2_3`, which Python would read as 23."""
    if isinstance(cell, bool) or not isinstance(cell, str | Real | Decimal) or (isinstance(cell, str) and "_" in cell):
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None


def is_too_large(cell: Any) -> bool:
    """Return True if a cell has a finite number that is too large to be read."""
    try:
        return LARGEST < abs(float(cell)) < math.inf
    except (ValueError, TypeError, OverflowError):
        return False


def as_date(cell: Any) -> float | None:
    """Return the days since 1970, with a fraction, of a date or of a text in the form of ISO 8601, or None if a cell has none.

    A whole number of eight digits, such as 20240105, is such a text.
    """
    if isinstance(cell, Integral) and len(str(cell)) == len("20240105"):
        cell = str(cell)
    try:
        found = datetime.datetime.fromisoformat(cell.strip()) if isinstance(cell, str) else cell
        if isinstance(found, datetime.date) and not isinstance(found, datetime.datetime):
            found = datetime.datetime(found.year, found.month, found.day)  # noqa: DTZ001  # as EPOCH
        return (found.replace(tzinfo=None) - (found.utcoffset() or 0 * DAY) - EPOCH) / DAY
    except (ValueError, AttributeError, TypeError, OverflowError):
        return None


def as_category(cell: Any) -> str:
    """Return the text of a category. The truth values of Python and those in the texts of tables are `true` and `false`."""
    text = canonical(str(cell))
    return text.lower() if text.lower() in ("true", "false") else text


Inputs = TableInputs
