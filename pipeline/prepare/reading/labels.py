"""Turns the labels of rows into targets: a class for each kind of labels that tables have."""

import ast
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.raw_dataset import SPLITS, TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.spec import Targets
from pipeline.core.tasks.classification import described
from pipeline.core.tasks.multi_label import LabelTargets
from pipeline.core.tasks.regression import NumberTargets
from pipeline.core.tasks.sequence import SequenceTargets
from pipeline.core.untrusted import canonical, shown
from pipeline.prepare.reading import encodings
from pipeline.prepare.reading.class_names import ClassNames, joined

LONGEST_LABEL = 255
MOST_NAMED = 10
"""How many labels a message lists."""
WITHOUT_COMMA = re.compile(r"""['"]\s+['"]""")
"""Two strings side by side, as in `['red' 'blue']`."""


class LabelledRow(NamedTuple):
    """A row of the table `path`. `line` is the number of its line, from 1, and `label` what `Labels.checked` has returned."""

    path: Path
    line: int
    text: str
    label: Any
    split: str
    cells: tuple[Any, ...] = ()

    @property
    def place(self) -> str:
        return f"{shown(self.path)}:{self.line}"


class Labelled(NamedTuple):
    """The rows of all tables in the order in which they are read, and the description and the targets of the rows of each split."""

    rows: list[LabelledRow]
    task: Targets
    targets: dict[str, NDArray[Any]]
    notes: tuple[str, ...]
    """Sentences about tables that are not used, and about labels."""


class Labels:
    """The labels of a task, in the columns `columns` of tables: see `ClassLabels`, `NumberLabels` and `SeveralLabels`. `delimiter` is for the last."""

    def __init__(self, columns: Sequence[str | int], delimiter: str | None = None) -> None:
        self.columns, self.delimiter = tuple(map(str, columns)), delimiter

    def checked(self, cells: Sequence[Any], place: str) -> Any:
        """Return the label that the cells of a row in the label columns mean. Raises Refusal if there is none. `place` is the file and the line."""
        raise NotImplementedError

    def of(self, rows: list[LabelledRow], notes: Sequence[str], stored: Sequence[str], root: Path) -> Labelled:
        """Return the rows with their targets.

        `stored` are the class names in the file, if it has any. Raises Refusal if the labels do not fit each other. `root` is the dataset for
        the message.
        """
        raise NotImplementedError


class ClassLabels(Labels):
    """Labels that are the name or number of a class in one column, or the name of the one of several columns that has a 1."""

    def checked(self, cells: Sequence[Any], place: str) -> str:
        return class_label(marked(self.columns, cells, place) if self.columns[1:] else cells[0], place)

    def of(self, rows: list[LabelledRow], notes: Sequence[str], stored: Sequence[str], root: Path) -> Labelled:
        """Return the rows with their classes, in the order of `stored`, if all their names are there. Raises Refusal if a label does not occur in train."""
        classes = named({row.label for row in rows}, stored)
        known = {classes.numbers[row.label] for row in rows if row.split == TRAIN}
        if unseen := [row for row in rows if classes.numbers[row.label] not in known]:
            others = sorted({shown(row.label, 60) for row in unseen[1:]} - {shown(unseen[0].label, 60)})
            also = f", also {listed(others, MOST_NAMED)}" if others else ""
            more = f" ({len(unseen)} rows have such labels{also})" if unseen[1:] else ""
            raise Refusal(
                f"source.root: {unseen[0].place}: has the label {shown(unseen[0].label)}, which no row of train has{more}: correct it, or add such rows to train"
            )
        targets = by_split(rows, [classes.numbers[row.label] for row in rows], np.int64)
        return Labelled(rows, described(classes.names, str(root)), targets, (*classes.notes, *notes))


class NumberLabels(Labels):
    """Labels that are numbers, one in each of the columns."""

    def checked(self, cells: Sequence[Any], place: str) -> list[float]:
        return [number(cell, name, place) for cell, name in zip(cells, self.columns, strict=True)]

    def of(self, rows: list[LabelledRow], notes: Sequence[str], stored: Sequence[str], root: Path) -> Labelled:  # noqa: ARG002  # as for classes
        targets = by_split(rows, [row.label for row in rows], np.float64)
        return Labelled(rows, NumberTargets(columns=self.columns), targets, tuple(notes))


class SeveralLabels(Labels):
    """Labels of which a sample may have any number: a list of them in one column, or a truth value in each of several columns, named by them.

    A list is one of JSON or Parquet, or a text in which the delimiter separates the labels. An empty cell in one column means none; in several columns,
    it is refused: it may mean that nobody knows.
    """

    def checked(self, cells: Sequence[Any], place: str) -> frozenset[str]:
        if len(self.columns) > 1:
            return frozenset(name for cell, name in zip(cells, self.columns, strict=True) if truth(cell, name, place))
        return frozenset(class_label(label, place) for label in labels_of_cell(cells[0], self.delimiter, place))

    def of(self, rows: list[LabelledRow], notes: Sequence[str], stored: Sequence[str], root: Path) -> Labelled:
        if len(self.columns) > 1:
            names = ClassNames(self.columns, {name: number for number, name in enumerate(self.columns)}, ())
        else:
            names = named({label for row in rows for label in row.label}, stored)
        if len(names.names) < 2:
            raise Refusal(
                f"source.root: {root}: its samples have {counted(len(names.names), 'label')} ({', '.join(map(shown, names.names))}), but this "
                "task needs two at least: write `task: classification` if each sample has one class, or the source.label_delimiter"
            )
        marks = np.zeros((len(rows), len(names.names)), np.uint8)
        for mark, row in zip(marks, rows, strict=True):
            mark[[names.numbers[label] for label in row.label]] = 1
        return Labelled(rows, LabelTargets(labels=names.names), by_split(rows, marks, np.uint8), (*names.notes, *notes))


class TextLabels(Labels):
    """Labels that are texts, in one column. With `skip_empty`, an empty text is the label "", which is left out later."""

    def __init__(self, columns: Sequence[str | int], *, skip_empty: bool) -> None:
        super().__init__(columns)
        self.skip_empty = skip_empty

    def checked(self, cells: Sequence[Any], place: str) -> str:
        cell = cells[0]
        if isinstance(cell, str) and cell.strip():
            encodings.refuse_nul(cell, place)
            return cell
        is_empty = cell is None or isinstance(cell, str)
        if is_empty and self.skip_empty:
            return ""
        problem = (
            "an empty text" if is_empty else f"a text that is not a string ({shown(json.dumps(cell, default=str, ensure_ascii=False), 60)})"
        )
        remedy = "write a text, remove the row, or leave out all rows with empty texts with source.on_corrupt=skip"
        raise Refusal(f"has {problem} in the column {shown(self.columns[0], 60)}", remedy=remedy, place=place)

    def of(self, rows: list[LabelledRow], notes: Sequence[str], stored: Sequence[str], root: Path) -> Labelled:  # noqa: ARG002  # as for classes
        return Labelled(rows, SequenceTargets(), by_split(rows, [()] * len(rows), SequenceTargets.dtype), tuple(notes))


LABELS: dict[str, type[Labels]] = {"classification": ClassLabels, "regression": NumberLabels, "multi_label": SeveralLabels}


def named(found: set[str], stored: Sequence[str]) -> ClassNames:
    """Return the names of the labels `found` in the order of `stored`, if all are there, or else as `joined` orders them."""
    names = tuple(name for name in dict.fromkeys(map(canonical, stored)) if name in found)
    in_file = ClassNames(names, {name: number for number, name in enumerate(names)}, ())
    return in_file if found <= set(names) else joined(found)


def by_split(rows: Sequence[LabelledRow], values: Sequence[Any] | NDArray[Any], dtype: type[np.generic]) -> dict[str, NDArray[Any]]:
    """Return the values of the rows of each split as an array."""
    splits = np.array([row.split for row in rows])
    return {split: np.array(values, dtype)[splits == split] for split in SPLITS if split in splits}


def marked(columns: Sequence[str], cells: Sequence[Any], place: str) -> str:
    """Return the name of the column whose cell is 1. Raises Refusal unless it is one, and all other cells are 0. `place` is that of the row."""
    ones = [name for name, cell in zip(columns, cells, strict=True) if truth(cell, name, place, may_be_empty=True)]
    if len(ones) != 1:
        raise Refusal(
            f"has a 1 in {counted(len(ones), 'column')} of source.label_column ({listed([*map(shown, ones)], MOST_NAMED) or 'only 0'})",
            remedy="write one 1, or remove the row",
            place=place,
        )
    return ones[0]


def class_label(label: object, place: str) -> str:
    """Return the label of a class as a string in its canonical form. `place` is its file and line, for the message.

    Raises Refusal if the label is no string, whole number or truth value, is empty, cannot be printed, or has more than LONGEST_LABEL
    characters.
    """
    whole = isinstance(label, float) and label.is_integer()
    name = json.dumps(label) if isinstance(label, bool) else canonical(str(label)) if whole or isinstance(label, str | int) else ""
    if not name or not name.isprintable() or len(name) > LONGEST_LABEL:
        raise Refusal(
            f"has the label {shown(json.dumps(label, default=str), 60)}",
            remedy=f"write printable text or a whole number, at most {LONGEST_LABEL} characters",
            place=place,
        )
    return name


def labels_of_cell(cell: object, delimiter: str | None, place: str | None = None) -> Sequence[Any]:
    """Return the labels in a cell: a list, also one that is written as JSON or Python does, or a text, whose parts the delimiter separates.

    A list without commas, as NumPy writes it, is no list: Python would join its strings to one. Raises Refusal if there is one and `place`, its file
    and line, is given.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        for read in (json.loads, python_literal):
            try:
                found = read(cell.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            cell = found if isinstance(found, list) else cell
            break
        else:
            if place is not None and WITHOUT_COMMA.search(cell):
                raise Refusal(
                    f"has labels without commas between them, {shown(cell, 60)}",
                    remedy="write a list of JSON, or use a delimiter",
                    place=place,
                )
    if cell is None or cell == "":
        return []
    if isinstance(cell, str) and delimiter:
        return [part for part in map(str.strip, cell.split(delimiter)) if part]
    return cell if isinstance(cell, list) else [cell]


def python_literal(text: str) -> Any:
    """Return the value that `text` has in Python. Raises ValueError if it has two strings side by side."""
    if WITHOUT_COMMA.search(text):
        raise ValueError("strings side by side")
    return ast.literal_eval(text)


TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False, "none": False}
EMPTY = ("", "none")


def truth(cell: object, column: str, place: str, *, may_be_empty: bool = False) -> bool:
    """Return True if a cell of `column` means that a sample has the label. Raises Refusal if it is no truth value, or empty unless it
    `may_be_empty`, which means no. `place` is its file and line.
    """
    text = canonical(str(cell)).lower()
    found = TRUTH.get(text) if may_be_empty or text not in EMPTY else None
    if found is None:
        raise Refusal(
            f"has {shown(json.dumps(cell, default=str), 60)} in the column {shown(column, 60)}",
            remedy="write 1 if the sample has this label, else 0",
            place=place,
        )
    return found


def number(cell: object, column: str, place: str) -> float:
    """Return the number in a cell of `column`. Raises Refusal if it is empty, is no number, or is not finite. `place` is its file and line."""
    try:
        is_plain = not isinstance(cell, bool) and "_" not in str(cell)  # Python reads 2_3 as 23
        value = float(cell) if is_plain and isinstance(cell, str | int | float) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise Refusal(
            f"has {shown(json.dumps(cell, default=str), 60)} in the column {shown(column, 60)}",
            remedy="write a number such as 3.5, or remove the row",
            place=place,
        )
    return value
