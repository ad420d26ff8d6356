"""The rules for a single cell of a table: which text is missing, a plain number, a truth value, a date or a category, and how a format is written."""

import datetime
import math
import re
from decimal import Decimal
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

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
LARGEST = 1e100
"""A larger number is refused: sums of squares of such numbers, and of differences below its inverse, might not fit into float64."""
ROUNDING, SMALLEST = 1e-14, 1e-300
"""Numbers that differ by at most such a share of the largest, or at most by SMALLEST, are equal apart from rounding, as 0.3 and 0.1 + 0.2 are."""
DAY, SECOND = datetime.timedelta(days=1), datetime.timedelta(seconds=1)
EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  # dates without a time zone are those of UTC
LATEST = (datetime.datetime(9999, 12, 31) - EPOCH) / DAY  # noqa: DTZ001  # as EPOCH
NUMBER_FORMAT = re.compile(r"(?P<prefix>[^\d%()+\n-]{0,12})1(?P<thousands>[,.' ]?)234(?P<decimal>[.,])5(?P<suffix>[^\d()+\n-]{0,14})")
"""A format of numbers: the number 1234.5 as a column writes it, such as `$1,234.5`."""
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


def read(kind: Kind, cell: Any, name: str | int, written: str = "") -> float | str | None:
    """Return the value of a cell of a column of this kind: a number, the days of a date since 1970, or the text of a category.

    Return None if the cell has no value. Raises Refusal if it is no number or date. `name` and `written`, the format, are those of the column, for the message.
    """
    if is_missing(cell):
        return None
    value = {"number": as_number, "date": as_date, "category": as_category}[kind](cell)
    if value is None:
        raise Refusal(f"has {shown(cell, 60)} in the column {shown(name, 60)}", remedy=wanted(kind, written))
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
    """Return the finite number in a cell, or None if it has none. Truth values are no numbers, nor is `2_3`, which Python would read as 23.

    The minus sign of Unicode, U+2212, is one.
    """
    if isinstance(cell, bool) or not isinstance(cell, str | Real | Decimal) or (isinstance(cell, str) and "_" in cell):
        return None
    try:
        number = float(cell.replace("\u2212", "-") if isinstance(cell, str) else cell)
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
