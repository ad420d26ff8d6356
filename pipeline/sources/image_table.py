"""Images that a table lists with their labels: their paths in a folder, or the encoded images themselves in Parquet files."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import field_validator

from pipeline.core.raw_dataset import SPLITS, TRAIN, RawDataset
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.prepare.inputs.image_files import ImageFileSettings
from pipeline.prepare.reading import labelled_tables, parquet, table_formats
from pipeline.prepare.reading.archives import Folder
from pipeline.prepare.reading.class_folders import ClassFolders, Sample
from pipeline.prepare.reading.file_tree import Tree
from pipeline.prepare.reading.labelled_tables import Labelled
from pipeline.prepare.reading.listed_images import ListedImage, located
from pipeline.prepare.reading.parquet import ParquetImages
from pipeline.prepare.reading.streams import UTF8, Encoding
from pipeline.prepare.reading.table_sets import Tables, find_tables
from pipeline.prepare.reading.tables import Columns
from pipeline.prepare.row_params import LabelColumns, LabelSettings


class Settings(LabelSettings, ImageFileSettings):
    """Reads the images that a table lists, or that Parquet files hold.

    With `table`, `root` is a folder with the images and the table. Without it, `root` is a Parquet file with the images, or a folder with a
    table for each split, such as `train.csv` and `test.csv`, `train/metadata.csv`, or parts like `data/train-00000-of-00002.parquet`.
    A column of a Parquet file holds images as bytes, or structs with a field `bytes`, as in data sets of Hugging Face. A missing validation
    or test split is split off from train, with the share `source.valid` or `source.test`.

    A path in the table is relative to the folder of the table. If there is no such file, it is the image in `root` whose path ends so, or with
    whose path it ends, such as an absolute path on the machine of the author; the suffix may be missing, and case and the kind of slash do not count. Of several, that in the folder with the most images of the table is
    taken, and then that in a folder called like the split.
    """

    name: Literal["image_table"]
    table: Path | None
    """The table in the folder `source.root`, such as a `.csv` file. Null if the names of the tables name their splits, or if `source.root` is a
    Parquet file with the images."""
    image_column: Column
    """The column with the path of each image, or with the images themselves: its name in the first line or, in a file without a line of names,
    its number from 1."""
    label_column: LabelColumns
    """The column with the label of each image, in the same way as `image_column`. For a regression, it may be a list of columns; for classes, a list
    of columns of 0 and 1, where the name of that with the 1 is the label."""
    split_column: Column | None
    """The column with the split of each row: `train`, `valid` or `test`, or truth values in a column called, for example, `is_test`. Null if
    there is none."""
    encoding: Encoding
    """The encoding of the tables, by its name for Python. A byte order mark counts more."""

    RECOMMENDED: ClassVar = {
        "root": "data/raw/images",
        "table": None,
        "image_column": "image",
        "label_column": "label",
        "split_column": None,
        "encoding": UTF8,
    }
    ADDED: ClassVar = {"split_column": None, "encoding": UTF8}

    @field_validator("table")
    @classmethod
    def refuse_paths_outside(cls, table: Path | None) -> Path | None:
        if table is not None and (table.is_absolute() or ".." in table.parts):
            raise ValueError("must be a path inside the folder source.root: put the table there")
        return table

    def tables(self) -> Tables:
        """Return the tables of each split. Raises Refusal if there are none."""
        if self.table:
            return {TRAIN: [self.root / self.table]}
        if found := find_tables(self.root) or find_tables(self.root, of_lines=True):
            return found
        raise Refusal(f"source.table: {self.root} has no table called train: write the path of a table in it")

    def open(self, *, workers: int) -> RawDataset:
        return replace(super().open(workers=workers), described={"column": self.image_column})

    def files(self) -> tuple[Tree, ClassFolders]:
        found = self.tables()
        paths = [path for several in found.values() for path in several]
        columns = Columns(self.label_columns, split=self.split_column, of_images=True)
        column, is_parquet = str(self.image_column), table_formats.suffix_of(paths[0]) == parquet.SUFFIX
        holds_images = not self.root.is_dir() or (is_parquet and parquet.holds_images(paths[0], column))
        if holds_images:
            ParquetImages(self.root, column, tuple(map(self.inside, paths))).listing()  # refuses another column
        else:
            columns = replace(columns, text=self.image_column)
        parts = labelled_tables.of_tables(found, self.encoding, self.label_columns[0])
        labelled = labelled_tables.read(parts, columns, self.labels, self.root, skip=self.on_corrupt == "skip")
        rows = listed_rows(labelled, None if holds_images else self.image_column)
        tree: Tree
        if holds_images:
            tree = images = ParquetImages(self.root, column, tuple(self.inside(part.path) for part in labelled.parts))
            names = [images.name(self.inside(row.path), row.line) for row in rows]
        else:
            tree = Folder(self.root)
            names = located(rows, tree.listing().files, self.root)
        positions = defaultdict[str, Iterator[int]](count)
        samples = [Sample(name, row.split, next(positions[row.split])) for name, row in zip(names, rows, strict=True)]
        return tree, ClassFolders((), samples, labelled.targets, notes=labelled.notes, task=labelled.task, groups=self.groups(labelled))

    def inside(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path != self.root else ""


def listed_rows(labelled: Labelled, column: Column | None) -> list[ListedImage]:
    """Return the rows in the order of reading. `column` has the paths of the images; None if the table holds the images."""
    splits = [SPLITS[number] for number in labelled.splits.tolist()]
    written = [""] * len(splits)
    if column is not None:
        starts = {split: labelled.rows_of(split) for split in labelled.targets}
        for samples in labelled.samples([column]):
            for row, text in zip(starts[samples.split][samples.positions].tolist(), samples.texts(column), strict=True):
                written[row] = text
    lines = labelled.lines.tolist()
    return [ListedImage(labelled.path(row), lines[row], written[row], split) for row, split in enumerate(splits)]
