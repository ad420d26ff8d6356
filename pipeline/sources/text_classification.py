"""Labelled texts: tables (TSV, CSV, JSON or Parquet), or files of text by class in a folder or archive."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationInfo, field_validator

from pipeline.core.raw_dataset import SPLITS, TRAIN, RawDataset
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.spec import Targets
from pipeline.core.untrusted import reason, shown
from pipeline.inputs.text.description import TextInputs
from pipeline.prepare.inputs.text import TextSettings
from pipeline.prepare.inputs.tokens import BLOCK_TEXTS, ReadTexts, Texts, TokenizedTexts, texts_of
from pipeline.prepare.reading import archives, labelled_tables, line_files, streams, tables
from pipeline.prepare.reading.class_folders import ClassFolders, find_classes
from pipeline.prepare.reading.file_tree import READ_ERRORS, Tree
from pipeline.prepare.reading.labelled_tables import Labelled, Part
from pipeline.prepare.reading.labels import ClassLabels, Labels
from pipeline.prepare.reading.streams import UTF8
from pipeline.prepare.reading.table_formats import TABLES
from pipeline.prepare.reading.table_sets import Tables, find_tables, visible_files
from pipeline.prepare.reading.tables import Columns
from pipeline.prepare.row_params import LabelColumns, LabelSettings, RowSettings
from pipeline.tasks.classification.targets import ClassTargets


class Settings(RowSettings, LabelSettings, TextSettings):
    """Reads labelled texts of any number. `root` is one of:

    - a table: a `.tsv`, `.csv`, `.jsonl`, `.ndjson`, `.json` or `.parquet` file;
    - a folder or archive with a table for each split, such as `train.csv` and `test.csv`, `train/texts.csv`, or parts like
      `data/train-00000-of-00002.parquet`; a table of test without labels is not used;
    - any other file of text, or a folder of such for the splits, with a label in each line, before or after a tab or `|||`, after an `@`, or before a space if
      it is a number or begins with `__label__`: the columns have numbers;
    - a folder with a file for each class, such as `neg.txt` and `pos.txt`, each line of which is one text;
    - a folder with files of texts and of labels, line by line, such as `train_text.txt` and `train_labels.txt`: the columns are then the words
      `text` and `labels` in their names, and `mapping.txt` may have the names of numbered labels;
    - a folder or archive with files `SPLIT/CLASS/file` or `CLASS/file`, each of which is one text.

    A split valid or test that `root` does not have is split off from the texts of train, with the share `source.valid` or `source.test`.
    """

    name: Literal["text_classification"]
    text_column: Column | None
    """The column with the text: its name in the first line or, in a file without a line of names, its number from 1. The key in JSON lines.
    Null for files by class."""
    label_column: LabelColumns | None
    """The column with the label, in the same way as `text_column`. For a regression, it may be a list of columns; for classes, a list of columns of 0
    and 1, where the name of that with the 1 is the label."""

    RECOMMENDED: ClassVar = {"root": "data/raw/texts", "duplicates": "together", "text_column": None, "label_column": None}
    ADDED: ClassVar = {"duplicates": "keep", "table": None, "split_column": None, "encoding": UTF8, "on_corrupt": "fail"}

    @field_validator("split_column")
    @classmethod
    def split_matches_the_label(cls, split: Column | None, info: ValidationInfo) -> Column | None:
        if split is not None and kinds_of(info.data.get("label_column")) != {type(split)}:
            raise ValueError("must be of the same kind as label_column: both a name, or both a number")
        return split

    @field_validator("text_column")
    @classmethod
    def matches_the_label(cls, text: Column | None, info: ValidationInfo) -> Column | None:
        if "label_column" not in info.data:
            return text
        label = info.data["label_column"]
        if kinds_of(label) != {type(text)}:
            raise ValueError("must be of the same kind as label_column: both a name, both a number, or both null")
        if text is not None and text in (label if isinstance(label, tuple) else (label,)):
            raise ValueError("must be another column than label_column")
        return text

    def open(self, *, workers: int) -> RawDataset:
        if paths := self.tables():
            return self.open_tables(paths, workers)
        if isinstance(self.text_column, str) and (files := line_files.find_line_files(self.root)):
            columns = Columns((str(self.label_column),), self.text_column)
            parts, notes = line_files.of_lines(files, columns, self.root, self.encoding)
            return self.of_rows(parts, columns, self.labels, notes, workers)
        if self.text_column is None and (classes := line_files.class_files(visible_files(self.root), self.table)):
            parts = line_files.of_classes(classes, self.root, self.encoding)
            return self.of_rows(parts, Columns((2,), 1), ClassLabels(ClassTargets, [2]), [], workers)
        return self.open_files(workers)

    def tables(self) -> Tables:
        """Return the tables of each split, or if there are none, the files with a label in each line."""
        found = find_tables(self.root, self.table)
        is_of_columns = isinstance(self.text_column, str) and line_files.find_line_files(self.root)
        return found if found or self.text_column is None or is_of_columns else find_tables(self.root, self.table, of_lines=True)

    def open_tables(self, paths: Tables, workers: int) -> RawDataset:
        if self.text_column is None or self.label_column is None:
            remedy = "write the name or number of its column of texts here, and that of its column of labels in source.label_column"
            raise Refusal(f"source.text_column: {self.root} holds its texts in a table: {remedy}")
        columns = Columns(self.label_columns, self.text_column, self.split_column)
        parts = labelled_tables.of_tables(paths, self.encoding, self.label_columns[0])
        return replace(self.of_rows(parts, columns, self.labels, [], workers), described={"column": self.text_column})

    def of_rows(self, parts: Sequence[Part], columns: Columns, labels: Labels, notes: Sequence[str], workers: int) -> RawDataset:
        labelled = labelled_tables.read(parts, columns, labels, self.root, skip=self.on_corrupt == "skip")
        assert columns.text is not None
        if isinstance(self.text_column, int) and self.task == "classification":
            refuse_names(labelled)
        groups = self.groups(labelled)
        return self.dataset(
            labelled.task,
            labelled.targets,
            partial(texts_of, labelled, columns.text),
            workers,
            drawing_keys=groups,
            together=self.duplicates == "together" or groups is not None,
            sample_keys=labelled.keys,
            notes=(*labelled.notes, *notes),
        )

    def open_files(self, workers: int) -> RawDataset:
        if self.text_column is not None or self.label_column is not None:
            raise Refusal(
                f"source.text_column: {self.root} is neither a table nor a folder with a table called train: "
                f"give your table one of the suffixes {TABLES}, and in a folder call it, for example, train.csv; "
                "if the texts are files in class folders, write `text_column: null` and `label_column: null`"
            )
        if self.group_column is not None:
            raise Refusal(f"source.group_column: {self.root} has no table with columns: write null")
        tree = archives.open_tree(self.root)
        layout = find_classes(tree.listing(), str(self.root))
        together = self.duplicates == "together"
        return self.dataset(
            ClassTargets.named(layout.classes, str(self.root)),
            layout.targets,
            partial(read_files, tree, layout, self.root, self.encoding),
            workers,
            drawing_keys=None if together else layout.paths,
            together=together,
            sample_keys=layout.names,
            notes=layout.notes,
            described={"whole_files": True},
        )

    def dataset(self, task: Targets, targets: Mapping[str, NDArray[Any]], read: ReadTexts, workers: int, **options: Any) -> RawDataset:
        """Return the dataset. Only `prepare` calls `read`; the command `check` needs nothing but the targets. For `options`, see TokenizedTexts."""
        texts = TokenizedTexts(
            self,
            read,
            targets,
            describe=partial(TextInputs, length=self.max_length),
            rows_of=lambda tokenizer, inputs: partial(tokenizer.rows, length=inputs.length),
            fewest={"max_length": 0},
            workers=workers,
        )
        return texts.dataset(task, **options)


def kinds_of(columns: LabelColumns | None) -> set[type]:
    """Return the types of the columns: names, numbers or None."""
    return set(map(type, columns if isinstance(columns, tuple) else (columns,)))


def refuse_names(labelled: Labelled) -> None:
    """Raise Refusal if the first row of all has the only label that no other row of train has: the line has the names of the columns."""
    numbers = labelled.targets[TRAIN]
    counts = np.bincount(numbers)
    if labelled.splits[0] == SPLITS.index(TRAIN) and len(numbers) > 1 and np.flatnonzero(counts == 1).tolist() == [numbers[0]]:
        raise Refusal(
            f"source.root: {labelled.place(0)}: no other row has the label {shown(labelled.task.output_names[numbers[0]])}: if this line has the names of the columns, "
            "write these as source.text_column and source.label_column; else move it to another place"
        )


def read_files(tree: Tree, layout: ClassFolders, root: Path, encoding: str) -> Iterator[Texts]:
    """Yield a text for each file that `layout` lists.

    `tree` gives access to the files. `root` is the folder or archive, for messages. Raises Refusal if a file cannot be read, is not in `encoding`,
    or has an empty or too long text.
    """
    held: dict[str, list[tuple[str, str]]] = {split: [] for split in layout.targets}
    positions = dict.fromkeys(held, 0)

    def taken(split: str) -> Texts:
        places, found = zip(*held[split], strict=True)
        held[split], start = [], positions[split]
        positions[split] += len(found)
        return Texts(split, np.arange(start, positions[split]), [found], places)

    with tree.contents([sample.name for sample in layout.samples]) as members:
        for sample, member in zip(layout.samples, members, strict=True):
            place = f"{root}: {shown(sample.name)}"
            try:
                content = member.read()
            except Refusal:
                raise
            except READ_ERRORS as error:
                raise Refusal(f"source.root: {place}: cannot be read ({reason(error)}): repair or remove it") from None
            text = streams.decoded(content, encoding, f"source.root: {place}")
            held[sample.split].append((place, tables.checked_text(text, f"source.root: {place}")))
            if len(held[sample.split]) == BLOCK_TEXTS:
                yield taken(sample.split)
    yield from (taken(split) for split, found in held.items() if found)
