"""Pairs of texts in tables (TSV, CSV, JSON or Parquet): a source text and the text that a model should write for it."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from pipeline.core.raw_dataset import TRAIN, RawDataset
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.prepare.inputs.pairs import PairSettings
from pipeline.prepare.inputs.tokens import Texts, texts_of
from pipeline.prepare.reading import labelled_tables, line_files
from pipeline.prepare.reading.labelled_tables import Labelled
from pipeline.prepare.reading.labels import TextLabels
from pipeline.prepare.reading.table_formats import TABLES
from pipeline.prepare.reading.table_sets import Tables, find_tables
from pipeline.prepare.reading.tables import Columns
from pipeline.prepare.row_params import RowSettings
from pipeline.tasks.sequence.targets import SequenceTargets


class ColumnSettings(PairSettings):
    """The columns of pairs. Their class is a base, so that pydantic has validated them before `split_column`."""

    text_column: Column
    """The column with the source text: its name in the first line or, in a file without a line of names, its number from 1. The key in JSON
    lines."""
    target_column: Column
    """The column with the target text, in the same way."""


class Settings(RowSettings, ColumnSettings):
    """Reads pairs of texts of any number. `root` is a table (a `.tsv`, `.csv`, `.jsonl`, `.ndjson`, `.json` or `.parquet` file), or a
    folder or archive with a table for each split, such as `train.csv` and `test.csv`. Any other file of text is a table whose columns have numbers.
    Or it is a folder with parallel files, such as `train.en` and `train.de`, whose lines belong together: the columns are the suffixes.

    A split valid or test that `root` does not have is split off from the pairs of train, with the share `source.valid` or `source.test`.
    """

    name: Literal["text_pairs"]

    RECOMMENDED: ClassVar = {"root": "data/raw/pairs", "text_column": "source", "target_column": "target"}

    @field_validator("target_column", "split_column")
    @classmethod
    def matches_the_text(cls, column: Column | None, info: ValidationInfo) -> Column | None:
        text = info.data.get("text_column", column)
        if column is not None and type(column) is not type(text):
            raise ValueError("must be of the same kind as text_column: both a name, or both a number")
        if column == text and "text_column" in info.data:
            raise ValueError("must be another column than text_column")
        return column

    def open(self, *, workers: int) -> RawDataset:
        labelled = self.labelled()
        counts = {split: len(targets) for split, targets in labelled.targets.items()}
        read, described = partial(self.pairs, labelled), {"column": self.text_column}
        return self.dataset(read, counts, sample_keys=labelled.keys, notes=labelled.notes, described=described, workers=workers)

    def labelled(self) -> Labelled:
        """Return the rows with pairs. Raises Refusal if there is no table, or if a row is unusable."""
        columns = Columns((self.target_column,), self.text_column, self.split_column, label_key="target_column")
        labels, notes = TextLabels(SequenceTargets, [self.target_column]), list[str]()
        if files := self.line_files():
            parts, notes = line_files.of_lines(files, columns, self.root, self.encoding)
        elif paths := self.tables():
            parts = labelled_tables.of_tables(paths, self.encoding, self.target_column)
        else:
            remedy = f"give your table one of the suffixes {TABLES}, and in a folder call it, for example, train.csv"
            raise Refusal(f"source.root: {self.root} is neither a table nor a folder with a table called train: {remedy}")
        labelled = labelled_tables.read(parts, columns, labels, self.root, skip=self.on_corrupt == "skip")
        labelled.notes = (*labelled.notes, *notes)
        return labelled

    def pairs(self, labelled: Labelled) -> Iterator[Texts]:
        return texts_of(labelled, self.text_column, self.target_column)

    def line_files(self) -> Mapping[str, Mapping[str, Path]]:
        """Return the parallel files of each split by column, if one of the columns is the source text or the target text."""
        files = line_files.find_line_files(self.root)
        return files if {self.text_column, self.target_column} & files.get(TRAIN, {}).keys() else {}

    def tables(self) -> Tables:
        """Return the tables of each split, or if there are none, the files with several fields in each line."""
        if files := self.line_files():
            return {split: [*of_split.values()] for split, of_split in files.items()}
        return find_tables(self.root, self.table) or find_tables(self.root, self.table, of_lines=True)
