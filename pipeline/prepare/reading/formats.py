"""Finds in which format a column writes numbers or dates, such as `$1,234.5` or `%d/%m/%Y`, and reads its cells."""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.cells import LARGEST, NUMBER_FORMAT, Floats, kind_of_format
from pipeline.prepare.reading.arrow_cells import Cells, dates, is_missing, mask, numbers, texts

SIGNS = "$€£¥₹₽₩₺₪₫฿₴₦₱₸"
CODES = "AED|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|IDR|ILS|INR|JPY|KRW|MXN|NOK|NZD|PLN|RON|RUB|SEK|SGD|THB|TRY|USD|ZAR"
PREFIX = rf"[A-Z]{{0,2}}[{SIGNS}]|{CODES}|Rs|kr"
SUFFIX = rf"[%‰{SIGNS}]|(?:[^\W\d_]|°)(?:[^\W\d_]|[²³°/ ]){{0,11}}"
UNIT = re.compile(rf"\(?[-+]? ?(?P<before>(?:(?:{PREFIX}) ?)?)[-+]? ?[0-9.,' ]*[0-9](?P<after>(?: ?(?:{SUFFIX}))?)\)?")
WITH_COMMA = ("$", "£", "¥", "₹", "USD", "GBP", "JPY", "INR")
"""Currencies in which a comma stands between thousands."""
ANY_CASE = ("kg", "km", "cm", "lb", "hr", "yr")
STYLES = (("", "."), (",", "."), ("", ","), (".", ","), (" ", ","), (" ", "."), ("'", "."))
"""The signs between thousands and before decimals, the simplest first."""
PLAIN, COMMAS, DECIMAL_COMMA, POINTS, *_ = STYLES
FIELDS = {
    "%d": r"(?P<day>\d{1,2})",
    "%Y": r"\d{4}",
    "%y": r"\d{2}",
    "%p": r"[AaPp]\.?[Mm]\.?",
    **dict.fromkeys(("%b", "%B"), "[A-Za-z]{3,9}"),
    **dict.fromkeys(("%m", "%H", "%I"), r"\d{1,2}"),
    **dict.fromkeys(("%M", "%S"), r"[0-5]\d"),
}
DAYS = [sign.join(order) for sign in "/-" for order in (("%d", "%m", "%Y"), ("%m", "%d", "%Y"), ("%d", "%m", "%y"), ("%m", "%d", "%y"))]
DAYS += ["%d.%m.%Y", "%d.%m.%y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%y/%m/%d", "%y-%m-%d", "%b %d, %Y", "%b %d %Y", "%d. %b %Y"]
DAYS += [sign.join(("%d", "%b", year)) for sign in "- " for year in ("%Y", "%y")]
DATES = tuple(day + time for day in DAYS for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"))
"""The formats of dates that are found. Month and day are never in this order with points between them."""
MOST_UNITS, MOST_WORDS, FEWEST = 5, 2, 10
"""The most units and the most different texts without a digit in a column, and the fewest cells with a sign that can show that it divides thousands."""
OFTEN, FAR = 3, 3
"""An outlier occurs at least so often, and is so many times as far from the nearest other number as the range of all others."""


def read(cells: Cells, kind: str, written: str = "") -> Floats:
    """Return the number, or the days since 1970, in each cell: in the format `written`, or else plain; NaN where there is none."""
    plain = numbers if kind == "number" else dates
    if not written or pa.types.is_floating(cells.type):
        return plain(cells)
    encoded = texts(cells).dictionary_encode()
    values = encoded.dictionary
    found = (as_numbers if kind_of_format(written) == "number" else as_dates)(tidy(values), written)
    if (others := np.isnan(found)).any():
        found[others] = plain(values.filter(pa.array(others)))
    every: Floats = np.append(found, np.nan)[pc.fill_null(encoded.indices, len(values)).to_numpy(zero_copy_only=False)]
    return every


def tidy(values: Cells) -> Cells:
    """Return the texts without blanks around them, and with the blank, the apostrophe and the minus sign of ASCII."""
    values = pc.utf8_trim_whitespace(values)
    for sign, others in {" ": "[\u00a0\u2009\u202f]", "'": "\u2019", "-": "\u2212"}.items():
        if matches(values, others).any():
            values = pc.replace_substring_regex(values, others, sign)
    return values


def matches(values: Cells, pattern: str) -> NDArray[np.bool_]:
    return mask(pc.match_substring_regex(values, pattern))


def number_pattern(style: tuple[str, str], units: Iterable[tuple[str, str]]) -> str:
    """Return the pattern of texts with one number, before and after which one of `units` may be: of these, singular and plural are equal."""
    before, after = zip(*units, strict=True)
    prefix = "|".join({re.escape(each.strip()) for each in before})
    suffix = "|".join({same_units(each.strip()) for each in after})
    thousands, decimal = (re.escape(sign) for sign in style)
    grouped = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|" if thousands else ""
    grouped += r"[1-9]\d?(?:,\d{2})+,\d{3}|" if thousands == "," else ""  # as in India
    number = rf"(?:(?:{grouped}\d+)(?:{decimal}\d+)?|{decimal}\d+)"
    return rf"^(?:[-+]? ?(?:{prefix})? ?[-+]? ?{number} ?(?:{suffix})?|\((?:{prefix})? ?{number} ?(?:{suffix})?\))$"


def is_word(suffix: str) -> bool:
    """Return True if the case of the letters of a unit means nothing, as it does in `mW` and `MW`."""
    return suffix.lower().removesuffix("s") in ANY_CASE or (len(suffix) > 2 and suffix[1:].islower())


def stem(suffix: str) -> str:
    """Return the unit in the form that equal ones share: words in lower case, and singular, such as `month` for `Months`."""
    unit = suffix.lower() if is_word(suffix) else suffix
    return unit.removesuffix("s") if len(unit) > 2 else unit


def same_units(suffix: str) -> str:
    """Return the pattern of units with the same `stem`."""
    return f"(?{'i' * is_word(suffix)}:{re.escape(stem(suffix))}{'s?' * (len(stem(suffix)) > 1)})"


def as_numbers(values: Cells, written: str) -> Floats:
    found = NUMBER_FORMAT.fullmatch(written)
    assert found
    prefix, suffix = found["prefix"].strip(), found["suffix"].strip()
    fits = matches(values, number_pattern((found["thousands"], found["decimal"]), [(prefix, suffix)]))
    values = pc.replace_substring(values, prefix, "", max_replacements=1) if prefix else values
    return np.where(fits, converted(pc.if_else(pa.array(fits), values, "0"), found["decimal"], "", suffix), np.nan)


def converted(values: Cells, decimal: str, prefix: str, suffix: str) -> Floats:
    """Return the number in each text, in which only one is. `prefix` and `suffix` have the signs that may stand before and after it."""
    negative = matches(values, r"^\(|-")
    values = pc.utf8_ltrim(pc.utf8_rtrim(values, f" ){suffix}{suffix.swapcase()}sS"), f" (+-{prefix}")
    for sign in {*".,' "} - {decimal}:
        values = pc.replace_substring(values, sign, "")
    found = pc.cast(pc.replace_substring(values, decimal, "."), pa.float64()).to_numpy(zero_copy_only=False)
    return np.where(np.abs(found) <= LARGEST, np.where(negative, -found, found), np.nan)


@lru_cache(len(DATES))
def date_pattern(written: str) -> str:
    parts = (FIELDS.get(part) or re.escape(part) for part in re.split(r"(%.)", written))
    return f"^{''.join(parts)}$"


def as_dates(values: Cells, written: str) -> Floats:
    days = pc.cast(pc.struct_field(pc.extract_regex(values, date_pattern(written)), "day"), pa.int64())
    texts = pc.replace_substring_regex(values, r"([AaPp])\.?[Mm]\.?", r"\1M") if "%p" in written else values
    times = pc.strptime(texts, format=written, unit="s", error_is_null=True)
    known = mask(pc.equal(pc.day(times), days)) & mask(pc.greater(pc.year(times), 0))  # the 31st of February is none
    return np.where(known, pc.fill_null(pc.cast(times, pa.int64()), 0).to_numpy() / 86400, np.nan)


class Extremes:
    """The two smallest and the two largest different numbers of a column, with how often they occur and as which text."""

    def __init__(self) -> None:
        self.low, self.high = dict[float, tuple[int, str]](), dict[float, tuple[int, str]]()

    def add(self, found: Floats, cells: Cells, counts: NDArray[np.int64] | None = None) -> None:
        """Add numbers, and the cells in which they are; NaN is none. `counts` says how often each occurs, else once."""
        for ends, extreme in ((self.low, np.fmin), (self.high, np.fmax)):
            rest = found
            for _ in range(2):
                value = float(extreme.reduce(rest, initial=np.nan))
                if np.isnan(value):
                    break
                are_equal = found == value
                count, text = ends.get(value, (0, ""))
                count += int(are_equal.sum() if counts is None else counts[are_equal].sum())
                ends[value] = count, text or str(cells[int(are_equal.argmax())].as_py()).strip()
                rest = np.where(are_equal, np.nan, rest)
            for value in sorted(ends, reverse=ends is self.high)[2:]:
                del ends[value]

    @property
    def bounds(self) -> tuple[float, float]:
        return min(self.low, default=np.inf), max(self.high, default=-np.inf)

    def outliers(self) -> list[tuple[int, str, str]]:
        """Return how often each number occurs that is unlike all others, again and again, such as -999, its text, and what it is unlike in."""
        found = []
        for near, far in ((sorted(self.low), max(self.high, default=0)), (sorted(self.high, reverse=True), min(self.low, default=0))):
            count, text = (self.low | self.high)[near[0]] if near else (0, "")
            if count >= OFTEN and len(near) > 1 and abs(near[1] - near[0]) > FAR * abs(far - near[1]) > 0:
                found.append((count, text, "far from all others"))
            elif count >= FEWEST and len(near) > 1 and near[0] < 0 <= near[1]:
                found.append((count, text, "and no other number below 0"))
        return found


class Formats:
    """Gathers in which formats all cells of a column can be written that are neither plain numbers nor dates of ISO 8601.

    `known` counts all cells with a value: `plain` the plain numbers, `iso` the dates of ISO 8601, `words` each of the few texts without a digit, and
    `rows` all others. Empty `styles` and `dates` mean that no format fits. What is gathered does not depend on how the rows are divided into blocks.
    """

    def __init__(self) -> None:
        self.known = self.rows = self.plain = self.iso = self.separated = 0
        self.has_fractions = self.has_points = self.has_others_than_zero = self.has_long = self.has_several_widths = False
        self.words, self.units = dict[str, int](), dict[tuple[str, str], tuple[str, str]]()
        self.styles, self.dates = [*STYLES], [*DATES]
        self.ranges = defaultdict[str, Extremes](Extremes)
        """The extremes by the decimal sign, or by the format of a date."""

    @classmethod
    def of(cls, cells: Cells) -> Self:
        """Return what is gathered from cells, of which some may have no value."""
        known, formats = cells.filter(pa.array(~is_missing(cells))), cls()
        formats.add(known, numbers(known), dates(known))
        return formats

    def __bool__(self) -> bool:
        return bool(self.styles or self.dates)

    def add(self, cells: Cells, found: Floats, days: Floats) -> None:
        """Add cells that have a value. `found` are their plain numbers, `days` their dates of ISO 8601, NaN where there is none."""
        self.known += len(cells)
        if not self:
            return
        are_plain = ~np.isnan(found)
        others = ~are_plain & np.isnan(days)
        self.plain, self.iso = self.plain + int(are_plain.sum()), self.iso + int((~are_plain & ~others).sum())
        if are_plain.any():
            self.add_plain(cells, found)
        if not others.any():
            return
        counted = pc.value_counts(tidy(texts(cells.filter(pa.array(others)))))
        values, counts = counted.field(0), counted.field(1).to_numpy(zero_copy_only=False)
        have_digits = matches(values, r"\d")
        words = values.filter(pa.array(~have_digits))
        if len(words) <= MOST_WORDS:
            for word, count in zip(words.to_pylist(), counts[~have_digits].tolist(), strict=True):
                self.words[word] = self.words.get(word, 0) + count
        if len(words) > MOST_WORDS or len(self.words) > MOST_WORDS:
            self.styles, self.dates = [], []
        if self and have_digits.any():
            self.add_written(values.filter(pa.array(have_digits)), counts[have_digits])

    def add_plain(self, cells: Cells, found: Floats) -> None:
        with_fraction = ~np.isnan(found) & (found != np.floor(found))
        self.has_others_than_zero = self.has_others_than_zero or bool((np.nan_to_num(found) != 0).any())
        self.has_long = self.has_long or bool((np.abs(found[~with_fraction]) >= 1000).any())
        if not self.has_points and with_fraction.any():  # which may be points between thousands
            self.has_fractions = True
            self.has_points = not matches(texts(cells.filter(pa.array(with_fraction))), r"^\s*[-+]?[1-9]\d{0,2}\.\d{3}\s*$").all()

    def add_written(self, values: Cells, counts: NDArray[np.int64]) -> None:
        """Add different texts with digits. Nearly all columns are decided by the first."""
        self.dates = [written for written in self.dates if matches(values[:1], date_pattern(written)).all()]
        self.dates = [written for written in self.dates if not np.isnan(as_dates(values, written)).any()]
        if self.styles and (
            matches(values, r"^\D*0\d|^\+\d+ \d").any() or not self.add_units(values)
        ):  # 0\d is a code, +49 170 the number of a phone
            self.styles = []
        patterns = {style: number_pattern(style, self.units.values()) for style in self.styles}
        self.styles = [style for style, pattern in patterns.items() if matches(values, pattern).all()]
        self.rows += int(counts.sum())
        for written in self.dates:
            self.ranges[written].add(as_dates(values, written), values, counts)
        if not self.styles:
            return
        self.separated += int(counts[matches(values, r"\d[.,' ]\d")].sum())
        self.has_long |= bool(matches(values, r"^\D*\d{4}").any())
        self.has_several_widths |= not matches(values, r"^\D*\d{3}[.' ]\d").all()
        prefix, suffix = ("".join(pair[at] for pair in self.units.values()) for at in (0, 1))
        for decimal in {decimal for _, decimal in self.styles} if len(self.units) == 1 else ():
            self.ranges[decimal].add(converted(values, decimal, prefix, suffix), values, counts)

    def add_units(self, values: Cells) -> bool:
        """Find what is before and after the numbers. Return False if there are too many units, or a text without a unit."""
        known = [*self.units.values()]
        while len(values) and len(self.units) <= MOST_UNITS:
            if not known:
                if not (found := UNIT.fullmatch(values[0].as_py())):
                    return False
                known = [(found["before"], found["after"])]
                self.units.setdefault((found["before"].strip(), stem(found["after"].strip())), known[0])
                values = values[1:]
            before, after = (re.escape(part.strip()) for part in known.pop())
            values = values.filter(pa.array(~matches(values, rf"^\(?[-+]? ?{before} ?[-+]? ?[\d.,' ]*\d ?{after}\)?$")))
        return not len(values)

    @property
    def num_words(self) -> int:
        """Return how many cells have no digit; 0 if they have more than MOST_WORDS different texts."""
        return sum(self.words.values()) if self else 0

    def found(self) -> list[str]:
        """Return the format in which all cells are written apart from `words`, several if more than one fits, or [] if none does."""
        known = self.known - self.num_words
        if not self.rows:
            return []
        usable = [written for written in self.dates if not self.iso or written.startswith("%Y-%m-%d")]
        if usable and self.rows + self.iso == known:
            return usable
        if not self.styles or self.rows + self.plain != known or len(self.units) != 1:
            return []
        [(before, after)] = self.units.values()
        return [f"{before}1{thousands}234{decimal}5{after}" for thousands, decimal in self.possible_styles()]

    @property
    def is_mixed(self) -> bool:
        """Return True if some numbers have the unit, and others have none, zeros apart."""
        return bool(self.found() and self.styles and self.unit and self.plain and self.has_others_than_zero)

    @property
    def unit(self) -> str:
        """Return what stands before or after all numbers, or several of these, such as `kg and lb`; "" for nothing."""
        return " and ".join(f"{before}{after}".strip() for before, after in self.units.values())

    def possible_styles(self) -> list[tuple[str, str]]:
        """Return the simplest style that fits, or two that differ in what a comma or a point means: `1,234` may be 1234 or 1.234."""
        styles = [style for style in self.styles if style[1] == "." or not (self.has_points if style == POINTS else self.has_fractions)]
        is_grouped = bool(styles) and styles[0][0] in (*"' .",)
        if not styles or (
            not self.unit and (not self.separated or (is_grouped and not self.has_several_widths))
        ):  # such as a number of a phone
            return []
        for several, other in (((COMMAS, DECIMAL_COMMA), PLAIN), ((PLAIN, POINTS), DECIMAL_COMMA)):
            if {*several} <= {*styles} and other not in styles and self.separated:
                thousands = COMMAS if COMMAS in several else POINTS
                are_thousands = FEWEST <= self.separated < self.rows + self.plain and not self.has_long  # those below 1000 have no sign
                if are_thousands or (COMMAS in several and self.unit in WITH_COMMA):
                    return [thousands]
                return [*several] if COMMAS in several or re.fullmatch(rf"\W+|{CODES}", self.unit) else [PLAIN]
        return styles[:1]
