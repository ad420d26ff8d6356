"""Finds what the columns of a table hold, and computes what their description needs from the train split."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from pipeline.core.inputs.table import (
    LARGEST,
    LONGEST_VALUE,
    MOST_COLUMNS,
    MOST_KNOTS,
    MOST_VALUES,
    WITHOUT_COMMA,
    CategoryColumn,
    Kind,
    NumberColumn,
    TableInputs,
    as_category,
    as_date,
    as_number,
    is_constant,
    is_missing,
    with_comma,
)
from pipeline.core.raw_dataset import TRAIN, SampleBlock, blocks_of
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.params import SourceSettings

Values = Sequence[float | str | None]
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

    def kind_of(self, name: Column, cells: Sequence[Any], place: str) -> Kind | LeftOut:
        """Return what a column holds, or the reason why it is not used. `cells` are those of train, and `place` names the table.

        Raises Refusal if only most cells are numbers or dates, and the settings do not say what the column holds.
        """
        said = next((kind for key, kind in OF_KIND.items() if name in getattr(self, key)), None)
        return said or found_kind(name, cells, place)


OF_KIND: dict[str, Kind] = {
    "number_columns": "number",
    "category_columns": "category",
    "date_columns": "date",
}
KINDS: tuple[Kind, ...] = ("number", "date", "category")


def found_kind(name: Column, cells: Sequence[Any], place: str) -> Kind | LeftOut:
    """Return what the values of a column are, or a reason not to use it: see `TableSettings.kind_of`."""
    known = [cell for cell in cells if not is_missing(cell)]
    if any(isinstance(cell, list | dict) for cell in known):
        return LeftOut("nested values")
    different = set(map(as_category, known))
    if len(different) + (len(known) < len(cells)) < 2:
        return LeftOut("the same value in all rows" if known else "no value in any row")
    if comma := with_comma(known):
        raise Refusal(
            f"has numbers with a comma in the column {shown(name, 60)}, such as {shown(comma, 40)}",
            remedy=f"{WITHOUT_COMMA}, or add the column to source.category_columns or source.ignored_columns",
            place=place,
        )
    large = next((cell for cell in known if is_too_large(cell)), None)
    # a text such as 5636e188, among other codes, is no number
    if large is not None and sum(as_number(cell) is not None or is_too_large(cell) for cell in known) > MOSTLY * len(known):
        raise Refusal(
            f"has numbers above {LARGEST:g} in the column {shown(name, 60)}, such as {shown(large, 40)}",
            remedy="write it in another unit, or add it to source.ignored_columns",
            place=place,
        )
    conversions: dict[Kind, Callable[[Any], float | None]] = {"number": as_number, "date": as_date}
    for kind, convert in conversions.items():
        found = [convert(cell) for cell in known]
        wrong = [cell for cell, value in zip(known, found, strict=True) if value is None]
        if not wrong:
            numbers = [value for value in found if value is not None]
            if is_constant(np.array(numbers)) and len(known) == len(cells):
                return LeftOut("the same value in all rows, apart from rounding")
            return LeftOut("it numbers the rows") if kind == "number" and count_rows(numbers) else kind
        if len(wrong) <= (1 - MOSTLY) * len(known):
            raise Refusal(
                f"has {kind}s in the column {shown(name, 60)}, but in {len(wrong)} of {len(known)} rows something else, such as {shown(wrong[0], 40)}",
                remedy=f"write {kind}s there, or nothing, or add the column to source.category_columns or source.ignored_columns",
                place=place,
            )
    if len(different) > MOST_DIFFERENT * len(known):
        return LeftOut(f"{len(different)} different texts in {len(known)} rows")
    return "category"


def is_too_large(cell: Any) -> bool:
    """Return True if a cell has a finite number that is too large to be read."""
    try:
        return LARGEST < abs(float(cell)) < np.inf
    except (ValueError, TypeError, OverflowError):
        return False


def count_rows(numbers: Sequence[float]) -> bool:
    """Return True if numbers number the rows, in any order: they are whole and all different, with few gaps."""
    if len(numbers) < FEWEST_COUNTED or len(set(numbers)) < len(numbers) or not all(number.is_integer() for number in numbers):
        return False
    return max(numbers) - min(numbers) < 2 * len(numbers)


class Part(NamedTuple):
    """The values of a column in all rows of each split, as `pipeline.core.inputs.table.read` returns them."""

    name: Column
    kind: Kind
    values: Mapping[str, Values]


class Statistics:
    """Holds the columns of a table, and makes the description of its rows. Nothing is computed while they are stored: `fit` has done it."""

    dtype: ClassVar[type[np.generic]] = TableInputs.dtype

    def __init__(self, parts: Sequence[Part], scale: Scale = "standardized") -> None:
        self.parts, self.scale, self.row_shape = parts, scale, (len(parts),)

    def fit(self, assigned: Mapping[str, NDArray[np.str_]]) -> None:
        """Describe the columns by the rows that go to train. `assigned` has the final split of each row of each split of the source."""
        columns = []
        for part in self.parts:
            pairs = (pair for split, values in part.values.items() for pair in zip(values, assigned[split].tolist(), strict=True))
            columns.append(described(part, [value for value, name in pairs if name == TRAIN], self.scale))
        self.described = TableInputs(columns=tuple(columns))

    def blocks(self) -> Generator[SampleBlock]:
        """Yield all rows in the form in which they are stored. `fit` must be called before."""
        columns = list(zip(self.described.columns, self.parts, strict=True))
        stored = {
            split: np.stack([[column.stored(value) for value in part.values[split]] for column, part in columns], axis=1, dtype=np.float64)
            for split in self.parts[0].values
        }
        yield from blocks_of(stored, BLOCK_ROWS)

    def summarize(self, rows: NDArray[Any]) -> None:
        """Return None: `fit` has seen the rows of train."""

    def add(self, summary: None) -> None:
        """Do nothing, for the same reason."""

    def inputs(self) -> TableInputs:
        return self.described


def described(part: Part, values: Values, scale: Scale = "standardized") -> NumberColumn | CategoryColumn:
    """Return the description of a column by its values in train. If all numbers are equal, apart from rounding, the standard deviation is given as 1."""
    missing = any(value is None for value in values)
    if part.kind == "category":
        counts = Counter(str(value) for value in values if value is not None)
        frequent = sorted((value for value in counts if len(value) <= LONGEST_VALUE), key=lambda value: (-counts[value], value))
        kept = tuple(frequent[:MOST_VALUES])
        return CategoryColumn(name=part.name, missing=missing, values=kept, others=len(kept) < len(counts))
    numbers = np.array([value for value in values if value is not None] or [0.0], np.float64)
    if is_constant(numbers):  # the mean of equal numbers may be rounded
        mean, std, numbers = float(numbers[0]), 1.0, numbers[:1]
    else:
        unit = 1.0 if np.ptp(numbers) > 1 / LARGEST else np.ptp(numbers)  # the squares of numbers below 1e-162 are 0
        mean, std = float(numbers.mean()), float((numbers / unit).std() * unit)
    knots = knots_of(numbers) if scale == "ranks" else ()
    extremes = float(numbers.min()), float(numbers.max())
    return NumberColumn(kind=part.kind, name=part.name, missing=missing, mean=mean, std=std, knots=knots, extremes=extremes)


def knots_of(numbers: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return up to MOST_KNOTS of the different `numbers`, ascending, with the normal number of their rank. Equal numbers share their mean rank."""
    different, counts = np.unique(numbers, return_counts=True)
    ranks, normal = (counts.cumsum() - counts / 2) / len(numbers), NormalDist()
    low, high = (normal.inv_cdf(float(rank)) for rank in ranks[[0, -1]])
    between = [normal.cdf(float(number)) for number in np.linspace(low, high, MOST_KNOTS)[1:-1]]
    chosen = {0, *ranks.searchsorted(between).tolist(), len(ranks) - 1} - {len(ranks)}
    return tuple((float(different[at]), normal.inv_cdf(float(ranks[at]))) for at in sorted(chosen))
