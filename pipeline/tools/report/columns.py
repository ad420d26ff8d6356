"""The parts of a report about a model that reads tables: its columns, and some rows."""

from collections.abc import Sequence

from pipeline.core.inputs.table import CategoryColumn, Floats, NumberColumn, TableInputs
from pipeline.core.untrusted import shown
from pipeline.evaluate.columns import FILE
from pipeline.tools.report.evidence import Evidence
from pipeline.tools.report.page import Cell, Number, Section, Table

MOST_COLUMNS, MOST_VALUES, LONGEST = 10, 8, 40
NOTE = (
    "The importance of a column is by how much the loss of the test split rises if its cells are shuffled among the rows. "
    "Columns that tell the same share it."
)


def section(evidence: Evidence) -> Section | None:
    """Return the columns that the model reads, the most important first; None for other inputs than tables."""
    inputs = evidence.manifest.spec.inputs
    if not isinstance(inputs, TableInputs):
        return None
    measured = {row["column"]: Number(float(row["importance"])) for row in evidence.evaluation.table(FILE) or ()}
    described = {str(column.name): column for column in inputs.columns}
    order = sorted(described, key=[*measured, *described].index)
    rows = tuple((shown(name, LONGEST), described[name].kind, values_of(described[name]), measured.get(name, "")) for name in order)
    table = Table(("column", "kind", "in train", "importance"), rows).without_empty_columns()
    return Section("Columns", (table, *([NOTE] if measured else [])))


def values_of(column: NumberColumn | CategoryColumn) -> str:
    """Return a text about the values of a column in train."""
    if isinstance(column, NumberColumn):
        middle = column.cell(column.mean if column.kind == "number" else round(column.mean))
        text = f"{middle:.4g} on average, deviation {column.std:.4g}" if isinstance(middle, float) else f"{middle} on average"
    else:
        text = ", ".join(shown(value, LONGEST) for value in column.values[:MOST_VALUES])
        text += " and others" if column.others or len(column.values) > MOST_VALUES else ""
    return f"{text}; some missing" if column.missing else text


def rows(inputs: TableInputs, stored: Floats, header: tuple[str, ...], labels: Sequence[tuple[Cell, ...]]) -> Table:
    """Return stored rows with their labels, and the cells of their first columns. `header` names the labels."""
    chosen = inputs.columns[:MOST_COLUMNS]
    cells = [[spoken(column.cell(number)) for column, number in zip(chosen, row, strict=False)] for row in stored.tolist()]
    caption = f"The first {len(chosen)} of {len(inputs.columns)} columns" if len(inputs.columns) > len(chosen) else ""
    names = [shown(column.name, LONGEST) for column in chosen]
    return Table((*header, *names), tuple((*label, *each) for label, each in zip(labels, cells, strict=True)), caption)


def spoken(cell: float | str | None) -> Cell:
    return Number(cell) if isinstance(cell, float) else shown(cell or "", LONGEST)
