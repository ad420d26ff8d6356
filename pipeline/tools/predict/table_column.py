"""The column of a table that holds the inputs of a model: that of its training, or another one that the user names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import encodings, tables
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.tables import Block, Named
from pipeline.tools.params.table import Table

OPTION = "--column"
MOST_NAMED = 8


class TableColumn(NamedTuple):
    """`trained` is the column that the model file records, and `given` that which the user names. Each is None if there is none.

    `encoding` is that of tables of text.
    """

    trained: Column | None
    given: Column | None
    encoding: str = encodings.UTF8

    def values(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield the number of the line of each row of a table, and its value in the column. Raises Refusal as `blocks` does."""
        column = self.chosen(path)
        return ((line, fields[column]) for line, fields in tables.records(self.blocks(path, [(OPTION, column)])))

    def blocks(self, path: Path, columns: Named) -> Iterator[Block]:
        """Yield the rows of a table with their cells in some columns, read as `prepare` reads them. The first is that of the inputs.

        Raises Refusal if no column is known, if the table cannot be read or lacks it, or if the first line may have the names of columns
        where the column is known by its number only.
        """
        column = columns[0][1]
        try:
            for at, block in enumerate(tables.blocks(path, columns, encoding=self.encoding)):
                if at == 0 and isinstance(column, int):
                    self.refuse_names(path, column, block.cells[column][0].as_py())
                yield block
        except MissingColumn as refusal:
            if self.given is not None or refusal.column != column:
                raise
            raise Refusal(f"{refusal} (the model reads the column {shown(column, 60)}; {OPTION} reads another one)") from None

    def refuse_names(self, path: Path, column: int, first: object) -> None:
        """Raise Refusal if the first line, which has the cell `first` in the column, may have the names of the columns."""
        if first == self.trained or (self.given is None and first_line_may_be_names(path, self.encoding)):
            raise Refusal(
                f"its first line may have the names of the columns, and the column is known by its number, {column}: if it has, add {OPTION} NAME; "
                f"if it is an input, too, add {OPTION} {column}"
            )

    def chosen(self, path: Path) -> Column:
        """Return the column. Raises Refusal with the columns of the table if neither the model file nor the user names one."""
        column = self.given if self.given is not None else self.trained
        if column is not None:
            return column
        table = Table.read(path, encoding=self.encoding)
        names = [shown(name, 60) for name in (*table.columns, *table.holds_images)]
        raise Refusal(
            f"is a table, and the model file does not say from which column its inputs are: add {OPTION} NAME with one of its columns, "
            f"{listed(names, MOST_NAMED)}"
        )


def parsed(written: str) -> Column:
    """Return a column as it is written on the command line: digits are its number."""
    return int(written) if written.isascii() and written.isdigit() else written


def first_line_may_be_names(path: Path, encoding: str) -> bool:
    try:
        return any(isinstance(name, str) for name in Table.read(path, encoding=encoding).columns)
    except Refusal:  # of a single line, nobody can tell
        return True
