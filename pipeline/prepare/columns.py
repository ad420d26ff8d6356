"""Decides what a column of a table holds, from the rows of train: its kind, its format, its range, and what only the user can say."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.cells import LARGEST, NUMBER_FORMAT, Floats, Kind, as_category, is_constant, is_too_large, kind_of_format
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.inputs.table import TableSettings
from pipeline.prepare.reading.arrow_cells import Cells, by_value, is_missing, plain_numbers, texts
from pipeline.prepare.reading.class_folders import words
from pipeline.prepare.reading.formats import Extremes, Formats
from pipeline.prepare.reading.formats import read as read_cells
from pipeline.prepare.reading.json_rows import is_nested

VALUES: tuple[Literal["number", "date"], ...] = ("number", "date")
MOSTLY = 0.9
"""A column of which so many cells are numbers or dates, but not all, has mistakes or marks of missing values."""
MOST_DIFFERENT = 0.5
"""A column of texts of which more are different, such as names, is no column of categories."""
FEWEST_COUNTED = 10
OFTEN_PADDED, MOST_UNITS = 0.01, 3
INDICES = ("Unnamed: 0", "__index_level_0__")
"""The names of the index of rows that pandas adds to CSV and Parquet files. It has gaps where rows were removed before."""
FEW_ROWS = 1000
MOST_DIFFERENT_TEXTS, MOST_DIFFERENT_BYTES, MOST_DIFFERENT_NUMBERS = 100_000, 2**24, 10_000
"""A column of more different texts, or of more bytes of such, is no column of categories, however many rows there are; nor is one whose first
cells are more different numbers."""
FIRST_WRITTEN, LAST_WRITTEN = 10_000_101, 99_991_231
"""The first and the last date, written as a number."""
SEPARATED = re.compile(r"\d[^\w-]\d")
PIXELS = re.compile(r"\[?\s*\d+(?:[\s,;]+\d+){63,}\s*\]?")
"""The pixels of an image in one cell."""


class LeftOut(NamedTuple):
    """Why a column is not used."""

    reason: str


class Doubt(NamedTuple):
    """Says what only the user can decide about a column: which of `formats` it has, or whether `marks`, texts of some cells, mean no value."""

    name: Column
    problem: str
    formats: Sequence[str] = ()
    marks: Sequence[str] = ()
    may_be_codes: bool = False


class Unclear(Refusal):
    """Raised if doubts about columns must be settled by keys of the section `source`."""


def unclear(place: str, doubts: Sequence[Doubt], settings: TableSettings) -> Unclear:
    """Return the refusal that says how each answer is written into the `settings`."""
    marks = [mark for mark in dict.fromkeys(mark for doubt in doubts for mark in doubt.marks) if mark not in settings.missing]
    ways = [f"if {' and '.join(shown(mark, 30) for mark in marks)} means no value, add {marks_added(marks, settings)}"] if marks else []
    unsure = [doubt for doubt in doubts if doubt.formats]
    for at in range(max((len(doubt.formats) for doubt in unsure), default=0)):
        chosen = [(doubt.name, doubt.formats[min(at, len(doubt.formats) - 1)]) for doubt in unsure]
        ways.append(f"to read {' and '.join(written for _, written in chosen)}, add {assignment('formats', [*settings.formats, *chosen])}")
    if codes := [doubt.name for doubt in doubts if doubt.may_be_codes]:
        ways.append(f"if they are codes, add {assignment('category_columns', [*settings.category_columns, *codes])}")
    ignored = assignment("ignored_columns", [*settings.ignored_columns, *(doubt.name for doubt in doubts)])
    problem = "; ".join(f"the column {shown(doubt.name, 60)} {doubt.problem}" for doubt in doubts)
    return Unclear(problem, remedy=f"{'; '.join(ways)}; to leave out such columns, add {ignored}", place=place)


def assignment(key: str, value: Sequence[Any]) -> str:
    """Return the word of a command that gives a list to a key of the section `source`, in the quotes that YAML and the shell need."""
    return shlex.quote(f"source.{key}={json.dumps(value, ensure_ascii=False)}")


def marks_added(marks: Sequence[str], settings: TableSettings) -> str:
    return assignment("missing", [*settings.missing, *marks])


def outliers_of(name: Column, num_rows: int, *several: Extremes) -> list[tuple[str, str]]:
    """Return the text of each number of a column that may mean no value, and a sentence about it."""
    return [
        (text, f"the column {shown(name, 40)} has {shown(text, 30)} in {count} of {num_rows} rows, {unlike}")
        for extremes in several
        for count, text, unlike in extremes.outliers()
    ]


class Survey:
    """Gathers what the rows of train say about a column, in little memory: how many cells are numbers or dates, their range, and their texts."""

    def __init__(self, name: Column, written: str = "") -> None:
        """`written` is the format of the numbers or dates, if the settings have it; else `kind` may find one."""
        self.name, self.written, self.rows, self.known = name, written, 0, 0
        self.counts = {"number": 0, "date": 0, "large": 0}
        self.examples = dict[str, str]()
        """The first cell that is no number, that is no date, that is a large number, and that is a number with a leading zero."""
        self.extremes = {kind: Extremes() for kind in VALUES}
        self.formats = Formats()
        self.texts: Cells | None = pa.array([], pa.string())
        """The different texts, while they are at most MOST_DIFFERENT_TEXTS."""
        self.whole: list[Floats] | None = []
        """All numbers, while they are whole and different: they may number the rows."""
        self.padded, self.lengths = 0, set[int]()
        """The number of cells that are digits after a leading zero, and the lengths of all cells, while all are whole numbers."""
        self.is_ascending, self.latest = True, -np.inf
        """True while all cells are dates of ISO 8601 in order, and the last of them."""
        self.labels: dict[Any, int] | None = {}
        """The label of each text, while each has its own."""
        self.known_of_label = Counter[int]()
        """The number of cells with a value for each label."""

    def add(self, cells: Cells, labels: NDArray[np.int64] | None) -> None:
        """Add the cells of some rows. `labels` are the numbers of their classes; None if the labels are no classes."""
        written = {kind_of_format(self.written): self.written} if self.written else {}
        found = None if written else plain_numbers(cells)
        known = ~is_missing(cells) if found is None else np.ones(len(cells), bool)
        are_numbers = self.counts["number"] == self.known
        self.rows, self.known = self.rows + len(known), self.known + int(known.sum())
        if labels is not None:
            self.known_of_label.update({label: count for label, count in enumerate(np.bincount(labels[known]).tolist()) if count})
        if not known.any():
            return
        cells = cells if known.all() else cells.filter(pa.array(known))
        found = read_cells(cells, "number", written.get("number", "")) if found is None else found
        self.add_values("number", found, cells)
        if self.whole is not None:
            are_whole = bool((found == np.floor(found)).all()) and len(np.unique(found)) == len(found)
            self.whole = [*self.whole, found] if are_whole else None
        self.add_lengths(found, cells)
        if len(others := cells.filter(pa.array(np.isnan(found)))):
            self.add_large(others)
        may_be_dates = np.isnan(found) | ((found >= FIRST_WRITTEN) & (found <= LAST_WRITTEN))  # of the numbers, only those such as 20240105
        days = np.full(len(found), np.nan)
        if may_be_dates.any():
            days[may_be_dates] = read_cells(cells.filter(pa.array(may_be_dates)), "date", written.get("date", ""))
        self.add_values("date", days, cells)
        self.is_ascending = self.is_ascending and bool((np.diff(days, prepend=self.latest) >= 0).all())
        self.latest = days[-1]
        if not written:
            self.formats.add(cells, found, days)
        num_leading = int(np.argmax(np.append(np.isnan(found), True))) if are_numbers else 0
        self.add_texts(cells.slice(0, num_leading), MOST_DIFFERENT_NUMBERS)
        self.add_texts(cells.slice(num_leading), MOST_DIFFERENT_TEXTS)
        self.labels = None if labels is None else self.with_labels(texts(cells), labels[known])

    def add_texts(self, cells: Cells, most: int) -> None:
        if self.texts is not None and len(cells):
            several = pc.unique(pa.concat_arrays([self.texts, texts(pc.unique(cells))]))
            self.texts = several if len(several) <= most and several.nbytes <= MOST_DIFFERENT_BYTES else None

    def add_values(self, kind: Literal["number", "date"], found: Floats, cells: Cells) -> None:
        are_values = ~np.isnan(found)
        self.counts[kind] += int(are_values.sum())
        if are_values.any():
            self.extremes[kind].add(found, cells)
        if not are_values.all():
            self.examples.setdefault(kind, str(cells[int(np.argmin(are_values))].as_py()))

    def add_lengths(self, found: Floats, cells: Cells) -> None:
        """Find codes such as 02134, a number with a leading zero, among whole numbers."""
        if self.padded < 0 or pa.types.is_floating(cells.type) or not (found == np.floor(found)).all():
            self.padded = -1
            return
        self.lengths.update(pc.unique(pc.binary_length(cells)).to_pylist())
        zeros = cells.filter(pc.starts_with(cells, "0"))
        if len(zeros) and len(codes := zeros.filter(pc.match_substring_regex(zeros, r"^0\d+$"))):
            self.padded += len(codes)
            self.examples.setdefault("code", codes[0].as_py())

    def add_large(self, cells: Cells) -> None:
        """Count numbers that are too large among cells that are no numbers."""
        found = by_value(cells, is_too_large)
        self.counts["large"] += int(np.array(found.values, bool)[found.numbers].sum())
        if any(found.values):
            self.examples.setdefault("large", str(cells[int(np.argmax(found.numbers == found.values.index(True)))].as_py()))

    def with_labels(self, cells: Cells, labels: NDArray[np.int64]) -> dict[Any, int] | None:
        """Return the label of each text so far, or None if one has two."""
        if self.labels is None:
            return None
        for few in (slice(0, FEW_ROWS), slice(0, None)):  # nearly all columns are decided by a few rows
            found = cells[few].dictionary_encode()
            pairs = np.unique(np.stack([found.indices.to_numpy().astype(np.int64), labels[few]]), axis=1)
            if pairs.shape[1] > len(found.dictionary):
                return None
        values = found.dictionary.to_pylist()
        known = {values[number]: label for number, label in pairs.T.tolist()}
        is_same = all(self.labels.get(value, label) == label for value, label in known.items())
        return {**self.labels, **known} if is_same and len({*known.values()}) == len(known) else None

    def doubt(self) -> Doubt | None:
        """Return what is not certain about the format of the cells, or about texts among numbers, if anything is. Set `written` to a certain format."""
        formats, marks = self.formats, [*self.formats.words]
        found, num_marks, num_texts = formats.found(), formats.num_words, MOST_DIFFERENT_TEXTS if self.texts is None else len(self.texts)
        num_values = self.known - num_marks
        if num_texts < 2 or not (found or (marks and num_values in self.counts.values())):
            return None
        if num_marks > (1 - MOSTLY) * self.known and (num_marks > num_values or num_texts < FEWEST_COUNTED):  # which may be categories
            return None
        cells = [] if self.texts is None else [text for text in self.texts.to_pylist() if text.strip() not in marks]
        example = next((text for text in cells if SEPARATED.search(text)), cells[0] if cells else self.examples.get("number", ""))
        kind = kind_of_format(found[0]) if found else next(kind for kind in VALUES if self.counts[kind] == num_values)
        words = " and ".join(shown(mark, 30) for mark in marks)
        problems = [f"has {kind}s, but in {num_marks} of {self.known} rows {words}"] if marks else []
        if formats.is_mixed:
            problems.append(f"has numbers with and without {formats.unit}")
        elif len(found) > 1:
            problems.append(f"has cells such as {shown(example, 30)}, which can be read in {len(found)} ways")
        elif found:
            self.written = found[0]
        offered = found if formats.is_mixed or found[1:] else ()
        return Doubt(self.name, " and ".join(problems), offered, marks, formats.is_mixed) if problems else None

    def kind(self, place: str, said: Kind | None) -> Kind | LeftOut:
        """Return what the column holds, or the reason not to use it: see `TableSettings.kind_of`. `doubt` must be called before."""
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
        for kind in [kind_of_format(self.written)] if self.written else VALUES:
            if self.written or (self.counts[kind] == self.known and not self.has_codes):
                return self.usable(kind)
        if different > MOST_DIFFERENT * self.known or self.texts is None:
            many = "too many or too long" if self.texts is None else different
            what = f"codes with leading zeros, such as {self.examples['code']}," if self.has_codes else "texts"
            are_pixels = PIXELS.fullmatch(self.examples.get("number", ""))
            pixels = "lists of numbers: if they are pixels, write them as arrays or images, see docs/data.md"
            return LeftOut(pixels if are_pixels else f"{many} different {what} in {self.known} rows{self.units}")
        return "category"

    @property
    def has_codes(self) -> bool:
        """Return True for whole numbers with leading zeros, such as 02134: all of one length, or not only a few with a zero."""
        return self.padded > 0 and (len(self.lengths) == 1 or self.padded >= OFTEN_PADDED * self.known)

    @property
    def units(self) -> str:
        """Say that numbers have several units, which is why they are not read; else ""."""
        units = self.formats.unit if self.formats and self.formats.rows + self.formats.plain == self.known else ""
        return f", numbers with the units {units}" if 1 < len(self.formats.units) <= MOST_UNITS and units else ""

    def refuse_mistakes(self, place: str) -> None:
        """Raise Refusal if most cells are numbers or dates, and others are not."""
        if self.counts["number"] == self.known or self.written:
            return
        name, ways = shown(self.name, 60), "or add the column to source.category_columns or source.ignored_columns"
        if self.counts["large"] and self.counts["number"] + self.counts["large"] > MOSTLY * self.known:
            # a text such as 5636e188, among other codes, is no number
            problem = f"has numbers above {LARGEST:g} in the column {name}, such as {shown(self.examples['large'], 40)}"
            raise Refusal(problem, remedy="write it in another unit, or add it to source.ignored_columns", place=place)
        for kind in VALUES:
            if 0 < (wrong := self.known - self.counts[kind]) <= (1 - MOSTLY) * self.known:
                problem = f"has {kind}s in the column {name}, but in {wrong} of {self.known} rows something else, such as {shown(self.examples[kind], 40)}"
                raise Refusal(problem, remedy=f"write {kind}s there, or nothing, {ways}", place=place)

    def bounds(self, kind: Literal["number", "date"]) -> tuple[float, float]:
        """Return the smallest and the largest number, or day since 1970; infinite ones if there are none."""
        lows, highs = zip(*(extremes.bounds for extremes in self.every(kind)), strict=True)
        return min(lows), max(highs)

    def every(self, kind: Literal["number", "date"]) -> list[Extremes]:
        """Return the extremes of plain cells, and of those in the format that was found."""
        found = NUMBER_FORMAT.fullmatch(self.written)
        ranges = self.formats.ranges.get(found["decimal"] if found else self.written)
        return [self.extremes[kind], *([ranges] if ranges else [])]

    def described(self, kind: Kind) -> str:
        """Return the name, and for numbers and dates their format and range."""
        low, high = (np.inf, -np.inf) if kind == "category" else self.bounds(kind)
        if kind == "category" or low > high:
            return f"{shown(self.name, 40)}{self.units}"
        ends = (f"{end:.10g}" if kind == "number" else str(np.datetime64("1970-01-01") + int(end // 1)) for end in (low, high))
        return f"{shown(self.name, 40)} ({f'{self.written}: ' * bool(self.written)}{' to '.join(ends)})"

    def outliers(self) -> list[tuple[str, str]]:
        """Return the text of each number that occurs again and again, far outside of all others, and a sentence about it."""
        if self.texts is not None and len(self.texts) < FEWEST_COUNTED:
            return []
        return outliers_of(self.name, self.rows, *self.every("number"))

    def usable(self, kind: Literal["number", "date"]) -> Kind | LeftOut:
        if is_constant(np.array(self.bounds(kind))) and self.known == self.rows:
            return LeftOut("the same value in all rows, apart from rounding")
        if kind == "number" and self.whole is not None and not self.written:
            if self.name in INDICES:
                return LeftOut("the index that pandas adds")
            numbers = np.concatenate(self.whole)  # in any order, with few gaps
            if len(numbers) >= FEWEST_COUNTED and len(np.unique(numbers)) == len(numbers):
                if np.ptp(numbers) < 2 * len(numbers):
                    return LeftOut("it numbers the rows")
                if "id" in words(str(self.name)):
                    return LeftOut("another number in each row, and called an id")
        return kind

    def warnings(self, names: Sequence[str], settings: TableSettings) -> list[str]:
        """Return sentences about a column that may be known only after the label. `names` are those of the classes, by their numbers."""
        name, found = shown(self.name, 40), []
        if self.labels and len(self.labels) == len({*self.labels.values()}) == len(self.known_of_label) > 1:
            found.append("has one value for each label")
        elif self.known < self.rows and len(self.known_of_label) == 1 < len(names):
            found.append(f"has values only in rows of {shown(names[next(iter(self.known_of_label))], 40)}")
        remedy = f"if it is not known before the label, add {assignment('ignored_columns', [*settings.ignored_columns, self.name])}"
        return [f"warning: the column {name} {what}: {remedy}" for what in found]
