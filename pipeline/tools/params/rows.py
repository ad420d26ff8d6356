"""Finds out which column of a table of numbers and categories is to be predicted, and whether it holds classes or numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core.cells import as_number, is_missing
from pipeline.core.untrusted import shown
from pipeline.tools.params import cells, columns
from pipeline.tools.params.columns import MOST_NUMBERED
from pipeline.tools.params.table import CLASSES, MOST_LISTED, REGRESSION, SEVERAL, Given, Name, Question, Table, assignment

FEWEST_BESIDE = 3
"""A table with a column of texts, and so many columns of numbers or categories, may be read for either. Those of 0 and 1 are labels of texts."""
MOST_OF_NAME, FEWEST_BESIDE_NAMES = 5, 5
"""Texts of so few words on average are names, such as those of passengers or cars, if so many columns of numbers or categories are beside them."""


def values(path: Path, table: Table, given: Given) -> dict[str, Any] | None:
    """Return the values for a table of rows, or None if it holds or lists images, or has texts and little else.

    Raises Refusal and Question if it has texts beside other columns, or if the column to predict, or what it holds, is not clear.
    """
    marks = {str(mark) for mark in given.get("missing") or ()}
    columns_read = table.columns.items()
    table = table._replace(columns={name: ["" if str(cell).strip() in marks else cell for cell in each] for name, each in columns_read})
    texts = columns.texts(table)
    usable = [name for name in candidates(table) if name not in texts and not (texts and cells.is_mark(table.columns[name]))]
    if "name" not in given:
        if table.has_images or (texts and len(usable) < FEWEST_BESIDE):
            return None
        if texts and not has_names(table):
            beside = f"the column {shown(texts[0], 60)} has texts, and {len(usable)} others have numbers or categories"
            questions = [f"{beside}: to train on these, add source=table; on the texts alone, add source=text_classification"]
            try:
                target(path, table, given, columns.split_column(path, table, given))
            except Question as error:
                questions += error.questions
            raise Question(path, *questions)
    split = columns.split_column(path, table, given)
    if isinstance(names := given.get("label_column"), list):
        are_marks = all(cells.is_mark(table.columns.get(name, ())) for name in names)
        return {"split_column": split, **columns.labels(path, table, given if are_marks else {"task": REGRESSION, **given})}
    if given.get("task") == SEVERAL and "label_column" not in given:
        return {"split_column": split, "task": SEVERAL, **columns.labels(path, table, given, [split])}
    label = target(path, table, given, split)
    if given.get("task") == SEVERAL or ("task" not in given and label in columns.list_columns(table)):
        return {"split_column": split, **columns.labels(path, table, {**given, "label_column": label})}
    return {"label_column": label, "task": given.get("task") or task(path, table, label), "split_column": split}


def has_names(table: Table) -> bool:
    """Return True if the texts of a table are names beside many other columns, so that its rows are what it is about."""
    texts = columns.texts(table)
    words = [
        sum(map(cells.num_words, values)) / len(values) for name in texts if (values := [*map(str, cells.filled(table.columns[name]))])
    ]
    return max(words, default=0.0) <= MOST_OF_NAME and len([name for name in candidates(table) if name not in texts]) >= FEWEST_BESIDE_NAMES


def candidates(table: Table) -> list[Name]:
    """Return the columns that hold classes, or numbers that do not just count the rows."""
    return table.where(lambda values: cells.is_label(values) or cells.are_numbers(values))


def target(path: Path, table: Table, given: Given, split: Name | None) -> Any:
    """Return the column to predict: the one that `given` names, the only one with such a name, or the only possible one. Raises Question."""
    if "label_column" in given:
        return columns.chosen(path, table, "label_column", {"task": REGRESSION, **given}, ())
    found = [name for name in dict.fromkeys((*candidates(table), *columns.list_columns(table))) if name != split]
    columns.refuse_unfit(path, table, given, found)
    named = [name for name in columns.called_target(table) if name in found]
    if len(named) == 1 or len(found) < 2:
        return columns.chosen(path, table, "label_column", given, named or found)
    ways = [columns.described(name, table.columns[name], "label_column") for name in (found[-1], *found[:-1])]
    more = " or that of another column" if len(ways) > MOST_LISTED else ""
    problem = f"{len(ways)} columns may be the one to predict{columns.without_values(table)}"
    raise Question(path, f"{problem}: add {' or '.join(ways[:MOST_LISTED])}{more}{unclear(table, [found[-1], *found[: MOST_LISTED - 1]])}")


def unclear(table: Table, found: Sequence[Name]) -> str:
    """Return what to add for a column of `found` whose whole numbers may be classes or numbers; or "" if there is none."""
    for name in found:
        try:
            task(Path(), table, name)
        except Question:
            return f"; for whole numbers, such as those of {shown(name, 60)}, say also if they are classes, {assignment('task', CLASSES)}, or not, {assignment('task', REGRESSION)}"
    return ""


def task(path: Path, table: Table, label: Name) -> str:
    """Return the task of a column to predict. Texts, two numbers, and whole numbers without gaps from 0 or 1 are classes; fractions, and numbers that seldom
    repeat, are numbers.

    Raises Question for other whole numbers, and for more than MOST_NUMBERED with a unit.
    """
    values = table.columns[label]
    known = sorted({*(cells.numbers(values) or ())})
    has_unit = any(as_number(value) is None for value in values if not is_missing(value))
    if len(known) <= 2 or (has_unit and len(known) <= MOST_NUMBERED and cells.is_label(values)):
        return CLASSES
    if not all(number.is_integer() for number in known) or not cells.is_label(table.columns[label]):
        return REGRESSION
    if known[0] in (0, 1) and known[-1] - known[0] == len(known) - 1 < MOST_NUMBERED:
        return CLASSES
    raise columns.either(path, label, known)
