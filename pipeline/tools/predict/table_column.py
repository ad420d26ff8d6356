"""The column of a table that holds the inputs of a model: that of its training, or another one that the user names."""

from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import encodings, tables
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

    def values(self, path: Path) -> list[tuple[int, Any]]:
        """Return the number of the line of each row of a table, and its value in the column, read as `prepare` reads it.

        Raises Refusal if no column is known, if the table cannot be read or lacks it, or if the first line may have the names of columns
        where the column is known by its number only.
        """
        column = self.chosen(path)
        try:
            found = [
                (line, fields[column]) for line, fields in tables.records(tables.blocks(path, [(OPTION, column)], encoding=self.encoding))
            ]
        except encodings.NotDecoded as error:
            raise Refusal(error.advising("--encoding ")) from None
        except Refusal as refusal:
            if self.given is not None:
                raise
            raise Refusal(f"{refusal} (the model reads the column {shown(column, 60)}; {OPTION} reads another one)") from None
        if isinstance(column, int) and (
            found[0][1] == self.trained or (self.given is None and first_line_may_be_names(path, self.encoding))
        ):
            raise Refusal(
                f"its first line may have the names of the columns, and the column is known by its number, {column}: if it has, add {OPTION} NAME; "
                f"if it is an input, too, add {OPTION} {column}"
            )
        return found

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
