"""Tables: for a terminal by rich, for files as Markdown."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

UNLIMITED = 10_000
"""The width of a table in a file, where nothing is cut."""
Rows = Iterable[Sequence["str | Text"]]


def show(rows: Rows, header: Sequence[str] = (), *, right: int = 0, width: int = UNLIMITED) -> None:
    """Print a table, as `aligned` returns it, unless it has no rows. `width` is that of stdout if it is not a terminal."""
    if table := aligned(rows, header, right=right, width=None if sys.stdout.isatty() else width):
        print(table)


def aligned(rows: Rows, header: Sequence[str] = (), *, right: int = 0, width: int | None = UNLIMITED) -> str:
    """Return a table with aligned columns, made by rich. The first `right` columns are aligned to the right. If `width` is None, it is that of the terminal.

    Without a header, the cells of the last column are broken into several lines if the table is too wide.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD) if header else Table.grid(padding=(0, 2))
    for number, title in enumerate(header):
        table.add_column(Text(title), justify="right" if number < right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))  # square brackets in a name are no markup
    console = Console(highlight=False, width=width)
    if not table.rows:
        return ""
    with console.capture() as rendered:
        console.print(table)
    return "\n".join(line.rstrip() for line in rendered.get().splitlines())  # rich fills each line with spaces


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. The cells are Markdown already: a `|` in them is escaped."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))
