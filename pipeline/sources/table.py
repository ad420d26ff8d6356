"""Rows of numbers, categories and dates in tables (CSV, TSV, JSON or Parquet)."""

import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.cells import Floats, Kind
from pipeline.core.raw_dataset import SPLITS, TRAIN, RawDataset
from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.inputs.table.description import MOST_COLUMNS
from pipeline.prepare.columns import FEWEST_COUNTED, Doubt, LeftOut, Survey, marks_added, outliers_of, unclear
from pipeline.prepare.inputs.table import KINDS, OF_KIND, Part, Statistics, TableSettings
from pipeline.prepare.reading import labelled_tables, tables
from pipeline.prepare.reading.arrow_cells import texts
from pipeline.prepare.reading.labelled_tables import Labelled, Samples
from pipeline.prepare.reading.labels import ClassLabels, Labels, NumberLabels
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.table_formats import TABLES
from pipeline.prepare.reading.table_sets import Tables, find_tables
from pipeline.prepare.reading.tables import Block, FaultyRows
from pipeline.prepare.row_params import LabelSettings, RowSettings
from pipeline.prepare.rows import row_contents

MOST_NAMED = 20


class Settings(RowSettings, LabelSettings, TableSettings):
    """Reads the rows of tables of any size. `root` is a table, or a folder or archive with a table for each split, as for labelled
    texts. All columns are inputs, except those of the label and the split, and those that are left out, which `prepare` names.

    A cell has no value if it is empty, or one of `?`, `NA`, `N/A`, `NaN`, `null` and `None`, or of `missing`.
    """

    name: Literal["table"]

    RECOMMENDED: ClassVar = {"root": "data/raw/table.csv", "duplicates": "keep", "label_column": None}
    ADDED: ClassVar = {"on_corrupt": "fail"}

    def tables(self) -> Tables:
        """Return the tables of each split. Raises Refusal if there are none."""
        found = find_tables(self.root, self.table)
        if not found:
            raise Refusal(f"source.root: {self.root}: is no table: give it one of the suffixes {TABLES}, and in a folder the name train")
        return found

    def open(self, *, workers: int) -> RawDataset:
        rows, notes = self.rows()
        together = self.duplicates == "together"
        return RawDataset(
            rows.labelled.task,
            rows.statistics,
            rows.labelled.targets,
            rows.statistics.blocks,
            rows.fit,
            drawing_keys=self.groups(rows.labelled) or partial(rows.keys, together=together),
            together=together or self.group_column is not None,
            sample_keys=rows.labelled.keys,
            notes=(*notes, *rows.labelled.notes),
        )

    @property
    def labels(self) -> Labels:
        found = super().labels
        if isinstance(found, NumberLabels):
            found.formats = {str(name): written for name, written in self.formats if name in self.label_columns}
        return found

    def rows(self) -> tuple["TableRows", list[str]]:
        """Return the rows, of which the first pass has found what the columns hold, and sentences about these.

        Labels that are no plain numbers are read once more in their format, if it is certain.
        """
        labels = self.labels
        try:
            return self.rows_of(labels)
        except Refusal:
            if not isinstance(labels, NumberLabels) or not (found := self.formats_of(labels)):
                raise
            return self.model_copy(update={"formats": (*self.formats, *found)}).rows()

    def rows_of(self, labels: Labels) -> tuple["TableRows", list[str]]:
        paths = self.tables()
        names = self.input_names(tables.names(paths[TRAIN][0], encoding=self.encoding))
        columns = tables.Columns(self.label_columns, split=self.split_column, cells=tuple(names))
        surveys = [Survey(name, dict(self.formats).get(name, "")) for name in names]

        def watch(block: Block, splits: NDArray[np.int8], values: NDArray[Any]) -> None:
            of_train = splits == SPLITS.index(TRAIN)
            rows = labelled_tables.selected(block, of_train)
            for survey in surveys:
                survey.add(rows.cells[survey.name], values[of_train] if self.task == "classification" else None)

        parts = labelled_tables.of_tables(paths, self.encoding, self.label_columns[0], self.missing)
        try:
            labelled = labelled_tables.read(parts, columns, labels, self.root, skip=self.on_corrupt == "skip", watch=watch)
        except MissingColumn as error:
            if error.column not in names:
                raise
            problem = f"{shown(error.table)} lacks the column {shown(error.column, 60)} of {shown(paths[TRAIN][0])}"
            raise Refusal(f"source.root: {problem}: add it there, or, if it is no input, to source.ignored_columns") from None
        if TRAIN not in labelled.targets:
            problem = f"has no row of train in the column {shown(self.split_column, 60)}"
            raise Refusal(f"source.split_column: {self.root}: {problem}: write {TRAIN} there")
        of_labels = labels.extremes.items() if isinstance(labels, NumberLabels) else ()
        outliers = [
            each
            for (name, extremes), numbers in zip(of_labels, labelled.targets[TRAIN].T, strict=False)
            for each in (outliers_of(name, len(labelled.lines), extremes) if len(np.unique(numbers)) >= FEWEST_COUNTED else ())
        ]
        inputs, notes = self.columns(surveys, [*labels.found] if isinstance(labels, ClassLabels) else [], outliers)
        if unread := tables.unread(paths[TRAIN][0], encoding=self.encoding):
            several = listed([shown(name, 40) for name in unread], MOST_NAMED)
            notes.append(f"columns not read, because they have images or nested values, or the first row lacks them: {several}")
        ascending = {survey.name for survey in surveys if survey.is_ascending}
        in_order = [part.name for part in inputs if part.kind == "date" and part.name in ascending]
        if in_order and self.divide == "random" and labelled.targets.keys() == {TRAIN}:
            later = "to test on the last rows instead of any, add source.divide=position"
            notes.append(f"the rows are in the order of the dates in {shown(in_order[0], 40)}: {later}")
        if isinstance(labels, NumberLabels):
            notes += [f"{shown(name, 40)} is read as {shown(written, 60)}" for name, written in labels.formats.items()]
        counts = {split: len(targets) for split, targets in labelled.targets.items()}
        return TableRows(labelled, names, Statistics(inputs, counts, self.numbers, self.missing)), notes

    def formats_of(self, labels: NumberLabels) -> list[tuple[Column, str]]:
        """Return the format of each column of labels in which it is certain, of those that were read as plain numbers. Raises Unclear if one has several."""
        found = {name: labels.seen[str(name)] for name in self.label_columns if labels.seen[str(name)].found()}
        doubts = [
            Doubt(name, "has numbers that can be read in several ways", seen.found())
            for name, seen in found.items()
            if seen.is_mixed or seen.found()[1:]
        ]
        if doubts:
            raise unclear(f"source.root: {self.root}", doubts, self)
        return [(name, seen.found()[0]) for name, seen in found.items()]

    def refuse_damaged(self, *, workers: int, within_s: float) -> None:  # one thread reads rows
        """Convert the rows as `prepare` does, for at most `within_s` seconds. Raise Refusal if a row has no number or date where one belongs."""
        said = self.formats or any(getattr(self, key) for key in OF_KIND)
        if said or self.split_column is not None or len(self.tables()) > 1:  # else, all cells were seen when the kinds were found
            until_s = time.monotonic() + within_s
            rows, _ = self.rows()
            for _ in rows.converted():
                if time.monotonic() > until_s:
                    return

    def input_names(self, names: Sequence[str]) -> list[Column]:
        """Return the columns that may be inputs. Raises Refusal if the settings name a column that is not there, or no label.

        `names` are those of the first line. If the label has a number, so have all columns.
        """
        if self.label_column is None:
            raise Refusal(f"source.label_column: is null: write the column to predict, one of {shown(', '.join(names))}")
        labels = self.label_columns
        known: list[Column] = [*range(1, len(names) + 1)] if isinstance(labels[0], int) else [name for name in names if name]
        for key in (*OF_KIND, "ignored_columns", "formats"):
            if unknown := [name for name in (dict(self.formats) if key == "formats" else getattr(self, key)) if name not in known]:
                remedy = f"its columns are {shown(', '.join(map(str, known)))}"
                raise Refusal(f"source.{key}: {self.root} has no column {shown(unknown[0], 60)}: {remedy}")
        if repeated := [name for name in known if known.count(name) > 1]:
            raise Refusal(f"source.root: {self.root}: has {shown(repeated[0], 60)} as the name of several columns: rename them")
        return [name for name in known if name not in {*labels, self.split_column, self.group_column, *self.ignored_columns}]

    def columns(
        self, surveys: Sequence[Survey], classes: Sequence[str], of_labels: Sequence[tuple[str, str]]
    ) -> tuple[list[Part], list[str]]:
        """Return the columns of the inputs, and a sentence about each kind of columns. Raises Refusal if none can be used.

        `classes` are the names of the classes, by the numbers that the surveys saw, and `of_labels` the outliers of the labels.
        """
        parts, kinds, left_out, warnings = list[Part](), dict[Kind, list[str]]({kind: [] for kind in KINDS}), list[str](), list[str]()
        place, outliers = f"source.root: {self.root}", [*of_labels]
        if doubts := [doubt for survey in surveys if not self.said_kind(survey.name) and (doubt := survey.doubt())]:
            raise unclear(place, doubts, self)
        for survey in surveys:
            kind = survey.kind(place, self.said_kind(survey.name))
            if isinstance(kind, LeftOut):
                left_out.append(f"{shown(survey.name, 40)} ({kind.reason})")
            else:
                kinds[kind].append(survey.described(kind))
                parts.append(Part(survey.name, kind, survey.written))
                warnings += survey.warnings(classes, self)
                outliers += survey.outliers() if kind == "number" else []
        if outliers:
            marks = [*dict.fromkeys(mark for mark, _ in outliers)]
            found = "; ".join(sentence for _, sentence in outliers)
            skipped = " source.on_corrupt=skip" * bool(of_labels)  # a row without a label is faulty
            warnings.append(f"warning: {found}: if it means no value, add {marks_added(marks, self)}{skipped}")
        sentences = [f"columns of the kind {kind}: {listed(several, MOST_NAMED)}" for kind, several in kinds.items() if several]
        if left_out:
            ways = "source.category_columns or source.number_columns can name them"
            sentences.append(f"columns not used: {listed(left_out, MOST_NAMED)}; {ways}")
        if not parts:
            why = "; ".join(sentences) or "all are ignored, or that of the label or the split"
            problem = f"has no column that can be an input: {why}"
            raise Refusal(f"source.root: {self.root}: {problem}; texts are read by source=text_classification")
        if len(parts) > MOST_COLUMNS:
            problem = f"has {len(parts)} columns that can be inputs, more than {MOST_COLUMNS}"
            raise Refusal(f"source.root: {self.root}: {problem}: add some to source.ignored_columns")
        return parts, [*sentences, *warnings]


class TableRows:
    """The cells of a table, which are read once more to be converted: for the keys by which splits are drawn, or else for `fit`."""

    def __init__(self, labelled: Labelled, names: Sequence[Column], statistics: Statistics) -> None:
        self.labelled, self.names, self.statistics = labelled, names, statistics

    def keys(self, *, together: bool) -> Generator[bytes]:
        """Yield a key of each row of train: the texts of all its cells, also of an identifier; or the values of its inputs if equal rows go `together`."""
        for samples, values in self.converted():
            if samples.split == TRAIN and together:
                yield from row_contents(self.statistics.keys(np.ascontiguousarray(values)))
            elif samples.split == TRAIN:
                written = (pc.fill_null(texts(samples.cells[name]), "") for name in self.names)
                yield from pc.binary_join_element_wise(*written, "\0").cast(pa.binary()).to_pylist()

    def fit(self, assigned: Mapping[str, NDArray[np.str_]]) -> None:
        if not self.statistics.filled:
            for _ in self.converted():
                pass
        self.statistics.fit(assigned)

    def converted(self) -> Generator[tuple[Samples, Floats]]:
        """Yield the rows with the values of their inputs. Raises Refusal, which lists the lines, if some have no number or date where one belongs."""
        self.statistics.filled = 0
        for samples, faulty in self.labelled.checked_samples(self.names):

            def add(rows: NDArray[np.bool_], refusal: Refusal, samples: Samples = samples, faulty: FaultyRows = faulty) -> None:
                faulty.add(samples.lines[rows], refusal)

            cells = [samples.cells[part.name] for part in self.statistics.parts]
            yield samples, self.statistics.add_rows(samples.split, int(samples.positions[0]), cells, add)
