"""Rows of numbers, categories and dates in tables (CSV, TSV, JSON or Parquet)."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.core.inputs.table import MOST_COLUMNS, Kind, is_missing, read
from pipeline.core.raw_dataset import SPLITS, TRAIN, RawDataset
from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.inputs.table import KINDS, LeftOut, Part, Statistics, TableSettings, Values
from pipeline.prepare.label_params import LabelSettings
from pipeline.prepare.params import Duplicates
from pipeline.prepare.reading import labelled_tables, tables
from pipeline.prepare.reading.encodings import UTF8, Encoding
from pipeline.prepare.reading.labelled_tables import TABLES, Tables, find_tables
from pipeline.prepare.reading.labels import Labelled, LabelledRow
from pipeline.prepare.reading.parquet import MissingColumn

MOST_NAMED = 20


class Settings(LabelSettings, TableSettings):
    """Reads the rows of tables. All rows are held in memory. `root` is a table, or a folder or archive with a table for each split, as for labelled
    texts. All columns are inputs, except those of the label and the split, and those that are left out, which `prepare` names.

    A cell has no value if it is empty, or one of `?`, `NA`, `N/A`, `NaN`, `null` and `None`.
    """

    untrusted: ClassVar[bool] = True
    name: Literal["table"]
    duplicates: Duplicates
    table: Annotated[str, Field(min_length=1, max_length=255)] | None
    """Which of several tables in the folder `source.root` are read: the name of that of train, beside which those of other splits count, or a pattern such
    as `sales_*.csv`. Null if only one set of them is there."""
    split_column: Column | None
    """The column with the split of each row, `train`, `valid` or `test`, or truth values as for labelled texts. Null if there is none."""
    encoding: Encoding
    """The encoding of the files, by its name for Python, such as `utf-8` or `gbk`. A byte order mark counts more. Parquet has its own."""

    RECOMMENDED: ClassVar = {
        "root": "data/raw/table.csv",
        "duplicates": "keep",
        "table": None,
        "label_column": None,
        "split_column": None,
        "encoding": UTF8,
    }

    def tables(self) -> Tables:
        """Return the tables of each split. Raises Refusal if there are none."""
        found = find_tables(self.root, self.table)
        if not found:
            raise Refusal(f"source.root: {self.root}: is no table: give it one of the suffixes {TABLES}, and in a folder the name train")
        return found

    def open(self, *, workers: int) -> RawDataset:
        paths = self.tables()
        names = self.input_names(tables.names(paths[TRAIN][0], encoding=self.encoding))
        columns = tables.Columns(self.label_columns, split=self.split_column, cells=tuple(names))
        try:
            labelled = labelled_tables.read(paths, columns, self.labels, self.root, self.encoding, skip_empty=False)
        except MissingColumn as error:
            if error.column not in names:
                raise
            remedy = "add it there, or, if it is no input, to source.ignored_columns"
            raise Refusal(
                f"source.root: {shown(error.table)} lacks the column {shown(error.column, 60)} of {shown(paths[TRAIN][0])}", remedy=remedy
            ) from None
        refuse_unlabelled(labelled)
        parts, notes = self.columns(names, labelled)
        if unread := tables.unread(paths[TRAIN][0], encoding=self.encoding):
            several = listed([shown(name, 40) for name in unread], MOST_NAMED)
            notes.append(f"columns not read, because they have images or nested values, or the first row lacks them: {several}")
        statistics = Statistics(parts, self.numbers)
        together = self.duplicates == "together"
        compared = [part.name for part in parts] if together else names  # such as an identifier, which tells equal rows apart
        keys = partial(drawing_keys, labelled, [*map(names.index, compared)])
        return RawDataset(
            labelled.task,
            statistics,
            labelled.targets,
            statistics.blocks,
            statistics.fit,
            drawing_keys=keys,
            together=together,
            sample_keys=partial(labelled_tables.sample_keys, labelled, self.root),
            notes=(*notes, *labelled.notes),
        )

    def input_names(self, names: Sequence[str]) -> list[Column]:
        """Return the columns that may be inputs. Raises Refusal if the settings name a column that is not there, or no label.

        `names` are those of the first line. If the label has a number, so have all columns.
        """
        if self.label_column is None:
            raise Refusal(f"source.label_column: is null: write the column to predict, one of {shown(', '.join(names))}")
        labels = self.label_columns
        known: list[Column] = [*range(1, len(names) + 1)] if isinstance(labels[0], int) else [name for name in names if name]
        for key in ("number_columns", "category_columns", "date_columns", "ignored_columns"):
            if unknown := [name for name in getattr(self, key) if name not in known]:
                raise Refusal(
                    f"source.{key}: {self.root} has no column {shown(unknown[0], 60)}: its columns are {shown(', '.join(map(str, known)))}"
                )
        if repeated := [name for name in known if known.count(name) > 1]:
            raise Refusal(f"source.root: {self.root}: has {shown(repeated[0], 60)} as the name of several columns: rename them")
        return [name for name in known if name not in {*labels, self.split_column, *self.ignored_columns}]

    def columns(self, names: Sequence[Column], labelled: Labelled) -> tuple[list[Part], list[str]]:
        """Return the columns of the inputs with their values, and a sentence about each kind of columns. Raises Refusal if none can be used."""
        if TRAIN not in labelled.targets:
            raise Refusal(
                f"source.split_column: {self.root}: has no row of train in the column {shown(self.split_column, 60)}: write {TRAIN} there"
            )
        rows = {split: [row for row in labelled.rows if row.split == split] for split in SPLITS if split in labelled.targets}
        parts, kinds, left_out = list[Part](), dict[Kind, list[str]]({kind: [] for kind in KINDS}), list[str]()
        for at, name in enumerate(names):
            kind = self.kind_of(name, [row.cells[at] for row in rows[TRAIN]], f"source.root: {self.root}")
            if isinstance(kind, LeftOut):
                left_out.append(f"{shown(name, 40)} ({kind.reason})")
            else:
                kinds[kind].append(shown(name, 40))
                parts.append(Part(name, kind, {split: values_of(kind, name, at, several) for split, several in rows.items()}))
        sentences = [f"columns of the kind {kind}: {listed(several, MOST_NAMED)}" for kind, several in kinds.items() if several]
        if left_out:
            sentences.append(
                f"columns not used: {listed(left_out, MOST_NAMED)}; source.category_columns or source.number_columns can name them"
            )
        labels = [str(row.label) for row in rows[TRAIN]]
        for part in parts:
            values = part.values[TRAIN]
            recur = part.kind == "category" or 3 * len({*labels}) <= len(labels)  # measurements differ in each row, as their labels may
            if recur and len({*zip(values, labels, strict=True)}) == len({*values}) == len({*labels}):
                name = shown(part.name, 40)
                sentences.append(
                    f"warning: the column {name} has one value for each label: if it is not known before the label, add source.ignored_columns=[{name}]"
                )
        if not parts:
            why = "; ".join(sentences) or "all are ignored, or that of the label or the split"
            raise Refusal(
                f"source.root: {self.root}: has no column that can be an input: {why}; texts are read by source=text_classification"
            )
        if len(parts) > MOST_COLUMNS:
            raise Refusal(
                f"source.root: {self.root}: has {len(parts)} columns that can be inputs, more than {MOST_COLUMNS}: add some to source.ignored_columns"
            )
        return parts, sentences


def values_of(kind: Kind, name: Column, at: int, rows: Sequence[LabelledRow]) -> Values:
    """Return the values of the column `name`, cell `at` of each row. Raises Refusal, which lists the lines, if some are no numbers or dates."""
    values, problems = list[float | str | None](), defaultdict[Path, dict[int, Refusal]](dict)
    for row in rows:
        try:
            values.append(read(kind, row.cells[at], name))
        except Refusal as error:
            (problem,) = error.problems
            problems[row.path][row.line] = Refusal(problem.text, remedy=problem.remedy, place=f"source.root: {row.place}")
    for path, several in problems.items():
        tables.refuse_rows(several, sum(row.path == path for row in rows), f"source.root: {shown(path)}")
    return values


def refuse_unlabelled(labelled: Labelled) -> None:
    """Raise Refusal, which lists the lines, if the class of a row is the mark of a cell without a value."""
    problems = defaultdict[Path, dict[int, Refusal]](dict)
    for row in labelled.rows:
        if is_missing(row.label):
            text, remedy = f"has {shown(row.label)} as its label, which means no value", "write a class, or remove the row"
            problems[row.path][row.line] = Refusal(text, remedy=remedy, place=f"source.root: {row.place}")
    for path, several in problems.items():
        tables.refuse_rows(several, sum(row.path == path for row in labelled.rows), f"source.root: {shown(path)}")


def drawing_keys(labelled: Labelled, compared: Sequence[int]) -> list[bytes]:
    """Return the cells of the columns `compared`, by their positions, of each row of train."""
    return [
        "\0".join(str(row.cells[at]) for at in compared).encode("utf-8", "surrogatepass") for row in labelled.rows if row.split == TRAIN
    ]
