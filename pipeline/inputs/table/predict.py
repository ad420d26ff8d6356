"""Turns the rows of tables, and rows that are given in Python, into stored samples, to use a model with nothing but its model file."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from pipeline.core.cells import Floats, as_category, as_number, wanted
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import shown
from pipeline.inference.batch import Batch
from pipeline.inputs.table.description import CategoryColumn, NumberColumn, TableInputs
from pipeline.prepare.reading import formats
from pipeline.prepare.reading.arrow_cells import Cells, by_value, is_missing, without
from pipeline.prepare.reading.json_rows import cell_text

MOST_NAMED = 3


class Reader:
    """Reads rows for a model by the names of its columns. Other columns are not read."""

    strings_are_paths: ClassVar[bool] = True

    def __init__(self, inputs: TableInputs) -> None:
        self.inputs = inputs
        self.columns = [column.name for column in inputs.columns]
        self.num_unknown, self.first_unknown = 0, ""
        self.far = dict[str | int, str]()
        """The first number far outside of those of train in each column that has one, as a text."""

    def stored(self, places: Sequence[str], cells: Sequence[Cells]) -> tuple[Floats, dict[int, Refusal]]:
        """Return the stored rows (n, columns) for the cells of the columns, and the reason why by the number of each row that cannot be read.

        `places` are the names of the rows.
        """
        rows, refused = np.empty((len(places), len(self.columns)), self.inputs.dtype), dict[int, Refusal]()
        for at, (column, of_column) in enumerate(zip(self.inputs.columns, cells, strict=True)):
            of_column = without(of_column, self.inputs.marks)  # noqa: PLW2901  # as prepare reads it
            if isinstance(column, CategoryColumn):
                found = by_value(of_column, as_category)
                stored = np.where(is_missing(of_column), np.nan, column.stored_numbers(found.values)[found.numbers])
                unknown = np.flatnonzero((stored == len(column.values)) & (not column.others))
                if len(unknown):
                    self.num_unknown += len(unknown)
                    cell = shown(of_column[int(unknown[0])].as_py(), 40)
                    self.first_unknown = self.first_unknown or f"{cell} in the column {shown(column.name, 40)} of {places[unknown[0]]}"
            else:
                stored = formats.read(of_column, column.kind, column.format)
                for row in np.flatnonzero(np.isnan(stored) & ~is_missing(of_column)) if np.isnan(stored).any() else ():
                    problem = f"has {shown(of_column[int(row)].as_py(), 60)} in the column {shown(column.name, 60)}"
                    refused.setdefault(int(row), Refusal(problem, remedy=wanted(column.kind, column.format)))
                self.note_far(column, stored, of_column, places)
            rows[:, at] = stored
        return rows, refused

    def note_far(self, column: NumberColumn, stored: Floats, cells: Cells, places: Sequence[str]) -> None:
        """Remember the first number of a column that is far outside of those of train."""
        if column.extremes is not None and column.name not in self.far and len(far := np.flatnonzero(column.are_far(stored))):
            low, high = map(column.cell, column.extremes)
            first = f"{shown(cells[int(far[0])].as_py(), 40)} in the column {shown(column.name, 40)} of {places[far[0]]}"
            self.far[column.name] = f"{first} ({low} to {high} in train)"

    def expected(self) -> str:
        """Describe the rows that are sent to a model in MLflow, for people."""
        return f"rows of a table (a DataFrame, or dicts) with the columns {shown(', '.join(map(str, self.columns)))}"

    def example(self, stored: Floats) -> list[dict[str, Any]]:
        """Return stored samples as rows that are sent."""
        columns = self.inputs.columns
        return [{str(column.name): column.cell(number) for column, number in zip(columns, row, strict=True)} for row in stored.tolist()]

    def values(self, given: Any) -> Any:
        """Return rows that were sent with the columns by their names: JSON has no numbers as names. Raises ValueError for anything but rows."""
        names = {str(name): name for name in self.columns}
        if hasattr(given, "columns"):
            return given.rename(columns=lambda name: names.get(str(name), name))
        if hasattr(given, "to_dict"):  # a row of pandas
            given = [given.to_dict()]
        if isinstance(given, dict):  # of columns
            given = [dict(zip(given, cells, strict=True)) for cells in zip(*map(np.atleast_1d, given.values()), strict=True)]
        rows = list(np.atleast_1d(np.asarray(given, dtype=object)))
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise ValueError("the input is no rows of a table: send dicts from the names of columns to values")
        return [{names.get(str(name), name): getattr(cell, "item", lambda cell=cell: cell)() for name, cell in row.items()} for row in rows]

    def row(self, value: Any) -> Floats:
        """Return a row as a stored sample: a dict with a value for each column, or an array of the stored numbers."""
        if isinstance(value, Mapping):
            self.inputs.refuse_zero(value)
            if lacking := [name for name in self.columns if name not in value]:
                raise Refusal(f"has no column {shown(lacking[0], 60)}: add it, with None if it has no value")
            cells = [cell_of(column, plain(value[column.name])) for column in self.inputs.columns]
            rows, refused = self.stored(["this row"], cells)
            if refused:
                raise refused[0]
            row: Floats = rows[0]
            return row
        if isinstance(value, np.ndarray) and value.shape == self.inputs.row_shape and value.dtype == self.inputs.dtype:
            return value
        raise Refusal(f"is of type {type(value).__name__}: give a dict with columns {shown(', '.join(map(str, self.columns)))}, or a path")

    def batch(self, rows: Sequence[Floats]) -> Batch:
        return Batch(torch.from_numpy(np.asarray(rows)))

    def note(self) -> str:
        """Say how many cells had a category that train does not have, and which columns had numbers far outside of those of train; "" if none had."""
        notes = []
        if self.far:
            what = "numbers far outside of those of train, of which the model has learned nothing"
            notes.append(f"{what}: {listed([*self.far.values()], MOST_NAMED)}")
        if self.num_unknown:
            what = "with a category that train does not have, which tells the model nothing"
            notes.append(f"{counted(self.num_unknown, 'cell')} {what}: first {self.first_unknown}")
        return "; ".join(notes)


def cell_of(column: NumberColumn | CategoryColumn, value: Any) -> Cells:
    """Return a cell given in Python. A number is one in each format: in `1.234,5`, its text 1.234 would be 1234."""
    is_number = isinstance(column, NumberColumn) and column.format and isinstance(value, int | float) and as_number(value) is not None
    return pa.array([float(value)], pa.float64()) if is_number else pa.array([cell_text(value)], pa.string())


def plain(value: Any) -> Any:
    """Return a cell given in Python as a value that JSON has: a scalar of NumPy as one of Python, and others, such as a date, as a text."""
    value = value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value
    return value if value is None or isinstance(value, str | bool | int | float | list | dict) else str(value)
