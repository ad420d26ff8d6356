"""Turns the rows of tables, and rows that are given in Python, into stored samples, to use a model with nothing but its model file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from pipeline.core.inputs.table import CategoryColumn, Floats, NumberColumn, TableInputs
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.untrusted import shown
from pipeline.inference.batch import Batch
from pipeline.prepare.reading import encodings, tables
from pipeline.prepare.reading.file_tree import Member
from pipeline.prepare.reading.parquet import MissingColumn

MOST_NAMED = 3


class Reader:
    """Reads rows for a model by the names of its columns. Other columns are not read."""

    strings_are_paths: ClassVar[bool] = True

    def __init__(self, inputs: TableInputs) -> None:
        self.inputs, self.encoding = inputs, encodings.UTF8
        self.columns = [column.name for column in inputs.columns]
        self.num_unknown, self.first_unknown = 0, ""
        self.far = dict[str | int, str]()
        """The first number far outside of those of train in each column that has one, as a text."""

    def read(self, file: Member) -> Iterator[tuple[str, Floats | Refusal]]:
        """Yield the rows of a file whose name does not say that it is a table, such as standard input: JSON lines, or else CSV."""
        try:
            content = tables.decode(file.read(), shown(file.name), encoding=self.encoding)
        except encodings.NotDecoded as error:
            raise Refusal(error.advising("--encoding ")) from None
        suffix = ".jsonl" if content.lstrip().startswith("{") else ".csv"
        yield from self.rows(file.name, tables.records_of(content, suffix, "", [("", column) for column in self.columns]))

    def rows(self, name: str, records: Iterable[tables.Numbered]) -> Iterator[tuple[str, Floats | Refusal]]:
        """Yield the rows in `records`, called `name:LINE`. Raises Refusal if the table lacks a column that the model reads."""
        try:
            for line, fields in records:
                place = f"{name}:{line}"
                yield place, self.cells(place, [fields[column] for column in self.columns])
        except MissingColumn as error:
            column, known = shown(error.column, 60), shown(", ".join(map(str, self.columns)))
            raise Refusal(
                f"has no column {column}, or several, but the model reads {known}: write it once, with empty cells if it has no values"
            ) from None

    def cells(self, place: str, cells: Sequence[Any]) -> Floats | Refusal:
        """Return the cells of the columns as a stored row, or the reason why they cannot be read. `place` is the name of the row."""
        try:
            row = self.inputs.row(cells)
        except Refusal as refusal:
            return refusal
        for column, cell, number in zip(self.inputs.columns, cells, row, strict=True):
            if isinstance(column, CategoryColumn) and not column.others and number == len(column.values):
                self.num_unknown += 1
                self.first_unknown = self.first_unknown or f"{shown(cell, 40)} in the column {shown(column.name, 40)} of {place}"
            elif isinstance(column, NumberColumn) and column.extremes and column.is_far(number) and column.name not in self.far:
                low, high = map(column.cell, column.extremes)
                self.far[column.name] = f"{shown(cell, 40)} in the column {shown(column.name, 40)} of {place} ({low} to {high} in train)"
        return row

    def row(self, value: Any) -> Floats:
        """Return a row as a stored sample: a dict with a value for each column, or an array of the stored numbers."""
        if isinstance(value, Mapping):
            self.inputs.refuse_zero(value)
            if lacking := [name for name in self.columns if name not in value]:
                raise Refusal(f"has no column {shown(lacking[0], 60)}: add it, with None if it has no value")
            row = self.cells("this row", [value[name] for name in self.columns])
            if isinstance(row, Refusal):
                raise row
            return row
        if isinstance(value, np.ndarray) and value.shape == self.inputs.row_shape and value.dtype == self.inputs.dtype:
            return value
        raise Refusal(f"is of type {type(value).__name__}: give a dict with columns {shown(', '.join(map(str, self.columns)))}, or a path")

    def batch(self, rows: Sequence[Floats]) -> Batch:
        return Batch(torch.from_numpy(np.stack(rows)))

    def note(self) -> str:
        """Say how many cells had a category that train does not have, and which columns had numbers far outside of those of train; "" if none had."""
        notes = []
        if self.far:
            notes.append(
                f"numbers far outside of those of train, of which the model has learned nothing: {listed([*self.far.values()], MOST_NAMED)}"
            )
        if self.num_unknown:
            notes.append(
                f"{counted(self.num_unknown, 'cell')} with a category that train does not have, which tells the model nothing: first {self.first_unknown}"
            )
        return "; ".join(notes)
