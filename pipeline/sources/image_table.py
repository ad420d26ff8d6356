"""Images that a table lists with their labels: their paths in a folder, or the encoded images themselves in a Parquet file."""

from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.image_files import ImageFileSettings
from pipeline.prepare.reading import parquet, tables
from pipeline.prepare.reading.archives import Folder
from pipeline.prepare.reading.class_folders import ClassFolders, Sample
from pipeline.prepare.reading.file_tree import Tree, name_bytes
from pipeline.prepare.reading.parquet import ParquetImages

ColumnName = Annotated[str, Field(min_length=1, max_length=255)]


class Settings(ImageFileSettings):
    """Reads the images that a table lists. All of them belong to train, and `source.valid` and `source.test` are the shares to split off.

    With `table`, `root` is a folder with the images and the table. Without it, `root` is a Parquet file whose column `image_column` holds the
    encoded images: bytes, or structs with a field `bytes`, as in data sets of Hugging Face.
    """

    name: Literal["image_table"]
    table: Path | None
    """The table in the folder `source.root`: a `.csv`, `.tsv`, `.jsonl`, `.ndjson` or `.parquet` file. Null if `source.root` is a Parquet file with
    the images."""
    image_column: ColumnName
    """The column with the path of each image, relative to the folder of the table, or with the images themselves."""
    label_column: ColumnName
    """The column with the label of each image."""

    RECOMMENDED: ClassVar = {"root": "data/raw/images", "table": None, "image_column": "image", "label_column": "label"}

    @field_validator("table")
    @classmethod
    def refuse_paths_outside(cls, table: Path | None) -> Path | None:
        if table is not None and (table.is_absolute() or ".." in table.parts):
            raise ValueError("must be a path inside the folder source.root: put the table there")
        return table

    def files(self) -> tuple[Tree, ClassFolders]:
        if self.table is None:
            images = ParquetImages(self.root, self.image_column)
            names = images.listing().files
            labels = [
                tables.checked_label(row[self.label_column], f"source.root: {shown(self.root)}:{line}")
                for line, row in parquet.rows(self.root, [self.label_column])
            ]
            return images, listed_files(names, labels)
        path = self.root / self.table
        rows = tables.read(path, {"image_column": self.image_column, "label_column": self.label_column})
        folder = PurePosixPath(self.table.parent.as_posix())
        names = [relative(folder, row.text.strip(), f"source.root: {shown(path)}:{row.line}") for row in rows]
        return Folder(self.root), listed_files(names, [row.label for row in rows])


def relative(folder: PurePosixPath, written: str, place: str) -> str:
    """Return the path in `source.root` of an image, whose path relative to `folder` is `written`. Raises Refusal if it leaves the root."""
    if written.startswith("/") or ".." in PurePosixPath(written).parts:
        raise Refusal(
            f"{place}: {shown(written)} is not below the folder of the table, so DVC would not see its changes: "
            "put the images beside the table, and write their paths relative to it"
        )
    return (folder / written).as_posix()


def listed_files(names: list[str], labels: list[str]) -> ClassFolders:
    """Return the files `names` as samples of train, with their `labels`."""
    classes = tuple(sorted(set(labels), key=name_bytes))
    numbers = {name: number for number, name in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels], dtype=np.int64)
    return ClassFolders(classes, [Sample(name, TRAIN, position) for position, name in enumerate(names)], {TRAIN: targets})
