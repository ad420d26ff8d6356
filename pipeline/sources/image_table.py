"""Images that a table lists with their labels: their paths in a folder, or the encoded images themselves in Parquet files."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from pydantic import field_validator

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.image_files import ImageFileSettings
from pipeline.prepare.reading import labelled_tables, parquet, tables
from pipeline.prepare.reading.archives import Folder
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, ClassFolders, Sample, visible_parts
from pipeline.prepare.reading.encodings import UTF8, Encoding
from pipeline.prepare.reading.file_tree import Tree
from pipeline.prepare.reading.labelled_tables import LabelledRow, Tables
from pipeline.prepare.reading.parquet import ParquetImages
from pipeline.prepare.reading.split_names import split_in
from pipeline.prepare.reading.tables import Column


class Settings(ImageFileSettings):
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
    label_column: Column
    """The column with the label of each image, in the same way as `image_column`."""
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
        if found := {TRAIN: [self.root / self.table]} if self.table else labelled_tables.find_tables(self.root):
            return found
        raise Refusal(f"source.table: {self.root} has no table called train: write the path of a table in it")

    def files(self) -> tuple[Tree, ClassFolders]:
        found = self.tables()
        paths = [path for several in found.values() for path in several]
        columns = {"label_column": self.label_column} | ({"split_column": self.split_column} if self.split_column else {})
        tree: Tree
        if not self.root.is_dir() or (tables.suffix_of(paths[0]) == parquet.SUFFIX and parquet.holds_images(paths[0], str(self.image_column))):
            ParquetImages(self.root, str(self.image_column), tuple(map(self.inside, paths))).listing()  # refuses another column
            labelled = labelled_tables.read(found, columns, self.encoding)
            read = list(dict.fromkeys(row.path for row in labelled.rows))
            tree = images = ParquetImages(self.root, str(self.image_column), tuple(self.inside(path) for path in read))
            names = [images.name(self.inside(row.path), row.line) for row in labelled.rows]
        else:
            labelled = labelled_tables.read(found, {"image_column": self.image_column, **columns}, self.encoding)
            tree = Folder(self.root)
            names = located(labelled.rows, tree.listing().files, self.root)
        positions: Counter[str] = Counter()
        samples = list[Sample]()
        for name, row in zip(names, labelled.rows, strict=True):
            samples.append(Sample(name, row.split, positions[row.split]))
            positions[row.split] += 1
        return tree, ClassFolders(labelled.classes, samples, labelled.targets, notes=labelled.notes)

    def inside(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path != self.root else ""


def located(rows: Sequence[LabelledRow], files: Sequence[str], root: Path) -> list[str]:
    """Return the name among `files`, those of the folder `root`, of each image that a row lists. That of a missing image is as written.

    Raises Refusal if a path leads out of the folder to an image that is not in it, or if several images fit equally well.
    """
    known = set(files)
    written = [path_in(row, root) for row in rows]
    if known.issuperset(written):
        return written
    by_stem = images_by_stem(files)
    fitting = [candidates(row.text, by_stem) for row in rows]
    in_folder = Counter((row.path, parent(name)) for names, row in zip(fitting, rows, strict=True) for name in names)

    def chosen(path: str, row: LabelledRow, names: Sequence[str]) -> str:
        if not names or ".." in path.split("/"):
            refuse_outside(path, row)
        if path in known or not names:
            return path
        ranks = {name: (in_folder[row.path, parent(name)], split_in(parent(name)) == row.split) for name in names}
        best = [name for name in names if ranks[name] == max(ranks.values())]
        if len(best) > 1:
            raise Refusal(
                f"source.root: {row.place}: {shown(row.text, 60)} may be {shown(best[0])} or {shown(best[1])}: write the path relative to the folder of "
                "the table, or move one of them to another place"
            )
        return best[0]

    return [chosen(path, row, names) for path, row, names in zip(written, rows, fitting, strict=True)]


def path_in(row: LabelledRow, root: Path) -> str:
    """Return the path in `root` of the image of a row, if what is written is relative to the folder of its table."""
    return (PurePosixPath(row.path.parent.relative_to(root).as_posix()) / row.text.strip().replace("\\", "/")).as_posix()


def refuse_outside(path: str, row: LabelledRow) -> None:
    """Raise Refusal if the `path` of an image that is not in the folder leads out of it."""
    if path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise Refusal(
            f"source.root: {row.place}: {shown(row.text.strip())} is not below the folder of the table, so DVC would not see its changes: "
            "put the images beside the table, and write their paths relative to it"
        )


def images_by_stem(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the images among `files`, by their last parts without the suffix, in lower case."""
    found = defaultdict[str, list[str]](list)
    for name in files:
        if name.lower().endswith(IMAGE_SUFFIXES) and visible_parts(name):
            found[PurePosixPath(name.lower()).stem].append(name)
    return found


def candidates(written: str, by_stem: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the images whose paths end as written, or whose whole paths are the end of what is written."""
    tail = PurePosixPath(written.strip().replace("\\", "/").lower())
    has_suffix = tail.name.endswith(IMAGE_SUFFIXES)
    found = []
    for name in by_stem.get(tail.stem if has_suffix else tail.name, []):
        image = PurePosixPath(name.lower())
        parts, expected = (image if has_suffix else image.with_suffix("")).parts, tail.parts
        shared = min(len(parts), len(expected))
        if parts[-shared:] == expected[-shared:]:
            found.append(name)
    return found


def parent(name: str) -> str:
    return name.rpartition("/")[0]
