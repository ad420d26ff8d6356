"""Turns the labels of rows into targets: a class for each kind of labels that tables have."""

import ast
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.cells import LARGEST, MISSING, as_truth, is_too_large
from pipeline.core.raw_dataset import SPLITS, TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.spec import Targets
from pipeline.core.untrusted import canonical, shown
from pipeline.prepare.reading import formats
from pipeline.prepare.reading.arrow_cells import Cells, Read, by_value, faulty_rows, is_empty, is_missing, mask, texts
from pipeline.prepare.reading.class_folders import ClassNames, joined
from pipeline.prepare.reading.formats import Extremes, Formats
from pipeline.prepare.reading.json_rows import is_nested

LONGEST_LABEL = 255
MOST_NAMED = 10
"""How many labels a message lists."""
WITHOUT_COMMA = re.compile(r"""['"]\s+['"]""")
"""Two strings side by side, as in `['red' 'blue']`."""


EMPTY = ("", "none")


class Rows(Protocol):
    """The rows of tables: `splits` (n,) has the number of the split of each in SPLITS, and `place` returns the file and the line of one."""

    root: Path
    splits: NDArray[np.int8]

    def place(self, row: int, /) -> str: ...


class NoLabel(Refusal):
    """Raised for a cell that has no label, or no target text. `source.on_corrupt: skip` leaves its row out."""

    def __init__(self, problem: str, column: str) -> None:
        remedy = "write one, remove the row, or leave out all such rows with source.on_corrupt=skip"
        super().__init__(f"has {problem} in the column {shown(column, 60)}", remedy=remedy)

    @classmethod
    def in_cell(cls, cell: object, column: str) -> Self:
        return cls(f"no label but {shown(json.dumps(cell, ensure_ascii=False), 60)}", column)


Problems = list[tuple[NDArray[np.int64], Refusal]]
"""The numbers of the rows of a block that cannot be used, and why."""


class Labels:
    """The labels of a task, in the columns `columns` of tables: see `ClassLabels`, `NumberLabels` and `SeveralLabels`. `delimiter` is for the last.
    `task` is the class that describes the targets.

    `read` is called for some rows at a time, and `of` at the end.
    """

    def __init__(self, task: type[Targets], columns: Sequence[str | int], delimiter: str | None = None) -> None:
        self.task, self.columns, self.delimiter = task, tuple(map(str, columns)), delimiter
        self.found = dict[Any, int]()
        """The labels, or sets of labels, of a column so far, with the value that `read` returns for each."""

    def numbered(self, read: Read[Any]) -> tuple[NDArray[np.int64], Problems]:
        """Return the values of `found` for the labels that were read, and the rows that have none."""
        values = [-1 if label is None else self.found.setdefault(label, len(self.found)) for label in read.values]
        return np.array(values, np.int64)[read.numbers], faulty_rows(read)

    def read(self, cells: Sequence[Cells], stored: Sequence[str]) -> tuple[NDArray[Any], Problems]:
        """Return a value for the labels of each row (n, ...), and the rows that have none. `cells` are those of the columns.

        `stored` are the class names in the file, whose numbers the cells may have.
        """
        raise NotImplementedError

    def of(self, values: NDArray[Any], rows: Rows, stored: Sequence[str]) -> tuple[Targets, NDArray[Any], tuple[str, ...]]:  # noqa: ARG002  # for classes
        """Return the description of the targets, those of all rows in their order, and sentences about them. `values` are what `read` returned.

        `stored` are the class names in the file, if it has any. Raises Refusal if the labels do not fit each other. In this base class, the values
        are the targets.
        """
        return self.task.named(self.columns, str(rows.root)), values, ()


class ClassLabels(Labels):
    """Labels that are the name or number of a class in one column, or the name of the one of several columns that has a 1."""

    def read(self, cells: Sequence[Cells], stored: Sequence[str]) -> tuple[NDArray[Any], Problems]:
        if self.columns[1:]:
            marks, problems = truths(cells, self.columns, may_be_empty=True)
            wrong = marks.sum(axis=1) != 1
            for rows, _ in problems:
                wrong[rows] = False
            for chosen in np.unique(marks[wrong], axis=0):
                ones = [name for name, is_one in zip(self.columns, chosen, strict=True) if is_one]
                problem = f"has a 1 in {counted(len(ones), 'column')} of source.label_column ({listed([*map(shown, ones)], MOST_NAMED) or 'only 0'})"
                refusal = Refusal(problem, remedy="write one 1, or remove the row")
                problems.append((np.flatnonzero(wrong & (marks == chosen).all(axis=1)), refusal))
            names = np.array([self.found.setdefault(canonical(name), len(self.found)) for name in self.columns])
            return names[marks.argmax(axis=1)], problems
        return self.numbered(by_value(cells[0], lambda cell: class_label(named_by(cell, stored), self.columns[0])))

    def of(self, values: NDArray[Any], rows: Rows, stored: Sequence[str]) -> tuple[Targets, NDArray[Any], tuple[str, ...]]:
        """Return the classes in the order of `stored`, if all their names are there. Raises Refusal if a label does not occur in train."""
        occurring = np.unique(values)
        classes = named({name for name, number in self.found.items() if number in occurring}, stored)
        numbers = np.array([classes.numbers.get(name, -1) for name in self.found], np.int64)
        targets = numbers[values]
        if len(unseen := np.flatnonzero(~np.isin(targets, targets[rows.splits == SPLITS.index(TRAIN)]))):
            labels = [*self.found]
            others = [shown(labels[number], 60) for number in dict.fromkeys(values[unseen].tolist())]
            also = f", also {listed(sorted({*others[1:]} - {others[0]}), MOST_NAMED)}" if others[1:] else ""
            more = f" ({len(unseen)} rows have such labels{also})" if unseen[1:].size else ""
            problem = f"has the label {shown(labels[values[unseen[0]]])}, which no row of train has{more}"
            raise Refusal(f"source.root: {rows.place(int(unseen[0]))}: {problem}: correct it, or add such rows to train")
        return self.task.named(classes.names, str(rows.root)), targets, classes.notes


class NumberLabels(Labels):
    """Labels that are numbers, one in each of the columns. `formats` has those of columns that write no plain numbers, by name."""

    def __init__(self, task: type[Targets], columns: Sequence[str | int], delimiter: str | None = None) -> None:
        super().__init__(task, columns, delimiter)
        self.formats = dict[str, str]()
        self.seen = {name: Formats() for name in self.columns}
        """The formats that the cells allow, for each column that has none in `formats`."""
        self.extremes = {name: Extremes() for name in self.columns}

    def read(self, cells: Sequence[Cells], stored: Sequence[str]) -> tuple[NDArray[Any], Problems]:  # noqa: ARG002  # as for classes
        values = [formats.read(column, "number", self.formats.get(name, "")) for column, name in zip(cells, self.columns, strict=True)]
        problems = Problems()
        for column, found, name in zip(cells, values, self.columns, strict=True):
            known = ~is_missing(column)
            given = column.filter(pa.array(known))
            self.extremes[name].add(found[known], given)
            if name not in self.formats:
                self.seen[name].add(given, found[known], np.full(len(given), np.nan))
            if len(wrong := np.flatnonzero(np.isnan(found))):
                read = by_value(column.take(pa.array(wrong)), partial(refuse_number, name))
                problems += [(wrong[rows], refusal) for rows, refusal in faulty_rows(read)]
        return np.stack(values, axis=1), problems


class SeveralLabels(Labels):
    """Labels of which a sample may have any number: a list of them in one column, or a truth value in each of several columns, named by them.

    A list is one of JSON or Parquet, or a text in which the delimiter separates the labels. An empty cell in one column means none; in several columns,
    it is refused: it may mean that nobody knows.
    """

    def read(self, cells: Sequence[Cells], stored: Sequence[str]) -> tuple[NDArray[Any], Problems]:
        if self.columns[1:]:
            return truths(cells, self.columns, may_be_empty=False)

        def labels_of(cell: str | None) -> frozenset[str]:
            found = labels_of_cell(cell, self.delimiter)
            return frozenset(class_label(named_by(label, stored), self.columns[0]) for label in found)

        return self.numbered(by_value(cells[0], labels_of))

    def of(self, values: NDArray[Any], rows: Rows, stored: Sequence[str]) -> tuple[Targets, NDArray[Any], tuple[str, ...]]:
        if len(self.columns) > 1:
            return self.task.named(tuple(map(canonical, self.columns)), str(rows.root)), values.astype(np.uint8), ()
        sets = [*self.found]
        names = named({label for number in np.unique(values) for label in sets[number]}, stored)
        task = self.task.named(names.names, str(rows.root))
        marks = np.zeros((len(sets), len(names.names)), np.uint8)
        for mark, labels in zip(marks, sets, strict=True):
            mark[[names.numbers[label] for label in labels if label in names.numbers]] = 1
        return task, marks[values], names.notes


class TextLabels(Labels):
    """Labels that are texts, in one column."""

    def read(self, cells: Sequence[Cells], stored: Sequence[str]) -> tuple[NDArray[Any], Problems]:  # noqa: ARG002  # as for classes
        empty = is_empty(cells[0])
        problems: Problems = [(np.flatnonzero(empty), NoLabel("an empty text", self.columns[0]))]
        if len(with_nul := np.flatnonzero(mask(pc.match_substring(texts(cells[0]), "\0")))):
            problems.append((with_nul, Refusal("has a NUL character, so it is no text", remedy="remove it")))
        return np.zeros((len(empty), 0), self.task.dtype), problems


LABELS: dict[str | None, type[Labels]] = {"class": ClassLabels, "numbers": NumberLabels, "labels": SeveralLabels}
"""How labels in tables are read, by the form of the targets."""


def named(found: set[str], stored: Sequence[str]) -> ClassNames:
    """Return the names of the labels `found` in the order of `stored`, if all are there, or else as `joined` orders them."""
    names = tuple(name for name in dict.fromkeys(map(canonical, stored)) if name in found)
    in_file = ClassNames(names, {name: number for number, name in enumerate(names)}, ())
    return in_file if found <= set(names) else joined(found)


def named_by(cell: Any, names: Sequence[str]) -> Any:
    """Return the name for a number of a class that a Parquet file stores `names` for; any other cell as it is."""
    return names[int(cell)] if names and (text := str(cell)).isascii() and text.isdigit() and int(text) < len(names) else cell


def class_label(label: object, column: str = "") -> str:
    """Return the label of a class as a string in its canonical form.

    Raises NoLabel, with the `column`, if it is one of MISSING. Raises Refusal if it cannot be printed, has more than LONGEST_LABEL characters,
    or is a list or an object of JSON.
    """
    name = "" if label is None else json.dumps(label) if isinstance(label, bool | list | dict) else canonical(str(label))
    if name.strip() in MISSING:
        raise NoLabel.in_cell(label, column)
    if not name.isprintable() or len(name) > LONGEST_LABEL or is_nested(name):
        remedy = f"write printable text or a whole number, at most {LONGEST_LABEL} characters; a list is read by source.task=multi_label"
        raise Refusal(f"has the label {shown(json.dumps(name, ensure_ascii=False), 60)}", remedy=remedy)
    return name


def truths(cells: Sequence[Cells], columns: Sequence[str], *, may_be_empty: bool) -> tuple[NDArray[np.bool_], Problems]:
    """Return for each row (n, columns) which of its cells mean that the sample has the label of the column.

    The rows with a cell that is no truth value are problems, and those with an empty one, unless it `may_be_empty`, which means no.
    """
    marks, problems = list[NDArray[np.bool_]](), Problems()

    def meant(cell: object) -> bool:
        found = False if may_be_empty and str(cell or "").strip().lower() in EMPTY else as_truth(cell)
        if found is None:
            problem = f"has {shown(json.dumps(cell, ensure_ascii=False), 60)} in the column {shown(name, 60)}"
            raise Refusal(problem, remedy="write 1 if the sample has this label, else 0")
        return found

    for column, name in zip(cells, columns, strict=True):  # noqa: B007  # `meant` reads the name
        found = by_value(column, meant)
        marks.append(np.array([bool(value) for value in found.values], bool)[found.numbers])
        problems += faulty_rows(found)
    return np.stack(marks, axis=1), problems


def refuse_number(column: str, cell: object) -> None:
    """Raise Refusal for a cell of `column` that is no number: NoLabel if it is empty."""
    if cell is None or str(cell).strip() in MISSING:
        raise NoLabel.in_cell(cell, column)
    problem = f"has {shown(json.dumps(cell, ensure_ascii=False), 60)} in the column {shown(column, 60)}"
    if is_too_large(cell):
        raise Refusal(f"has numbers above {LARGEST:g} in the column {shown(column, 60)}", remedy="write it in another unit")
    raise Refusal(problem, remedy="write a number such as 3.5, or remove the row")


def labels_of_cell(cell: object, delimiter: str | None) -> Sequence[Any]:
    """Return the labels in a cell: a list, also one that is written as JSON or Python does, or a text, whose parts the delimiter separates.

    Raises Refusal for a list without commas, as NumPy writes it: Python would join its strings to one.
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
            if WITHOUT_COMMA.search(cell):
                problem = f"has labels without commas between them, {shown(cell, 60)}"
                raise Refusal(problem, remedy="write a list of JSON, or use a delimiter")
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
