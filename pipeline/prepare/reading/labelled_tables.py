"""Finds the tables of each split in a folder, and reads their labelled rows."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import archives, lines, parquet, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, visible_parts
from pipeline.prepare.reading.labels import ClassLabels, Labelled, LabelledRow, Labels, class_label
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.split_names import SPLIT_NAMES, split_in, words
from pipeline.prepare.reading.tables import Columns

TABLES = ", ".join(tables.FORMATS)
LINES, MAPPING = ".txt", "mapping.txt"
MOST_EMPTY = 3
Tables = Mapping[str, Sequence[Path]]
"""The tables of each split: one, or several parts of one."""


class SeveralSets(Refusal):
    """Raised for a folder with several sets of tables. `sets` has the tables of train of each."""

    def __init__(self, root: Path, sets: Sequence[Sequence[Path]]) -> None:
        ways = " or ".join(shlex.quote(f"source.table={paths[0].relative_to(root)}") for paths in sets)
        super().__init__(f"source.root: {root}: has {len(sets)} tables of train: keep one, or add {ways}")
        self.sets = sets


def visible_files(root: Path) -> list[str]:
    """Return the names of the files in a folder or archive that are not hidden, or the name of the file `root`."""
    if not root.is_dir() and not root.name.lower().endswith(archives.SUFFIXES):
        return [root.name]
    return [name for name in archives.open_tree(root).listing().files if visible_parts(name)]


def find_tables(root: Path, table: str | None = None, *, of_lines: bool = False) -> dict[str, list[Path]]:
    """Return the tables of each split. The result is empty if `root` is neither a table nor a folder or archive with tables of splits.

    If `root` is a table, it belongs to train. In a folder, a word in the name of a table, or the name of a folder around it, names the split:
    `train.csv`, `data/test-00000-of-00001.parquet` or `valid/metadata.csv`. Tables whose names differ only in numbers are parts of one.
    `table` chooses one of several sets of tables, by the name or a pattern for the names of those of train; if their names have no word for
    a split, all tables with such a name belong to train. Without it, the set with the shortest paths counts. With `of_lines`, the tables are
    files of text with a label in each line. Raises SeveralSets if several are left, and Refusal if there is no table for train.
    """
    names = visible_files(root)
    if not root.is_dir() and names == [root.name]:
        return {TRAIN: [root]} if is_table(root, of_lines=of_lines) else {}
    candidates = [path for path in map(PurePosixPath, names) if is_table(path, of_lines=of_lines)]
    if of_lines:  # the files in other folders are texts by class
        candidates = [path for path in candidates if all(part.lower() in SPLIT_NAMES for part in path.parts[:-1])]
    groups = by_name(candidates)
    of_train = [found for found in groups.values() if TRAIN in found]
    if table is not None:
        of_train = [found for found in of_train if any(fnmatch(str(path), table) for path in found[TRAIN])]
        if not of_train:
            chosen = [root / path for path in candidates if fnmatch(str(path), table)]
            return {TRAIN: chosen} if chosen else {}
    depth = min((len(found[TRAIN][0].parts) for found in of_train), default=0)
    sets = [found for found in of_train if len(found[TRAIN][0].parts) == depth]
    if len(sets) > 1:
        raise SeveralSets(root, [[root / path for path in found[TRAIN]] for found in sets])
    if not sets:
        if alone := sorted(str(path) for found in groups.values() for paths in found.values() for path in paths if len(path.parts) == 1):
            raise Refusal(
                f"source.root: {root}: has {', '.join(alone)}, but no table of train: add a table called train with one of the suffixes {TABLES}"
            )
        return {}
    for split, paths in sets[0].items():
        are_parts = all(set(map(str.isdigit, words(path.stem))) == {False, True} for path in paths)
        if len(paths) > 1 and (not are_parts or len({path.suffix for path in paths}) > 1):
            raise Refusal(f"source.root: {root}: has two tables of {split} ({paths[0]}, {paths[1]}): keep one")
    return {split: [root / path for path in sets[0][split]] for split in SPLITS if split in sets[0]}


def by_name(candidates: Iterable[PurePosixPath]) -> dict[tuple[str, ...], dict[str, list[PurePosixPath]]]:
    """Return the tables of each split in each set of tables whose folders and names are equal but for words that mean a split, and numbers."""
    groups: dict[tuple[str, ...], dict[str, list[PurePosixPath]]] = defaultdict(lambda: defaultdict(list))
    for path in candidates:
        folders = [part for part in path.parts[:-1] if part.lower() not in SPLIT_NAMES]
        stem = stem_of(path)
        around = {SPLIT_NAMES[part.lower()] for part in path.parts[:-1] if part.lower() in SPLIT_NAMES}
        split = split_in(stem) or (around.pop() if len(around) == 1 else None)
        if split:
            others = [word for word in words(stem) if word not in SPLIT_NAMES and word != "of" and not word.isdigit()]
            groups[(*folders, "/", *others)][split].append(path)
    return groups


def is_table(path: Path | PurePosixPath, *, of_lines: bool) -> bool:
    """Return True if a file is a table by its name, or with `of_lines` may be a file of text that is none."""
    known = bool(tables.suffix_of(Path(path)))
    return (
        not (known or lines.is_document(path) or path.name.lower().endswith((*IMAGE_SUFFIXES, *archives.SUFFIXES))) if of_lines else known
    )


def stem_of(path: PurePosixPath) -> str:
    """Return the name of a table without its suffix, unless that is a split, as in `trec.train`."""
    known = tables.suffix_of(Path(path))
    if known:
        return path.name[: path.name.lower().rindex(known)]
    return path.name if path.suffix[1:].lower() in SPLIT_NAMES else path.stem


def find_line_files(root: Path, encoding: str) -> dict[str, dict[str, Path]]:
    """Return the files of text that are columns of one table, line by line: for each split, a dict from the name of a column to its file.

    Such are `train_text.txt` and `train_labels.txt`, whose columns are `text` and `labels`, or `texts.txt` and `labels.txt`, which belong to
    train. The result is empty if the files of train do not have equal numbers of lines, or are fewer than two.
    """
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    listed = map(PurePosixPath, visible_files(root)) if root.is_dir() else []
    names = [path for path in listed if path.suffix.lower() == LINES and path.name != MAPPING and not lines.is_document(path)]
    named = [path for path in names if split_in(str(path.with_suffix("")))]
    for path in named or names:
        words_left = [word for word in words(path.stem) if word not in SPLIT_NAMES]
        found[split_in(str(path.with_suffix(""))) or TRAIN]["_".join(words_left) or path.stem] = root / path
    of_train = found.get(TRAIN, {})
    counts = {len(lines_of(path, encoding)) for path in of_train.values()}
    return {split: found[split] for split in SPLITS if split in found} if len(of_train) > 1 and len(counts) == 1 else {}


def lines_of(path: Path, encoding: str) -> list[str]:
    return tables.read_text(path, encoding=encoding).rstrip("\r\n").split("\n")


def read_lines(found: Mapping[str, Mapping[str, Path]], columns: Columns, root: Path, encoding: str, *, skip_empty: bool) -> Labelled:
    """Return the labelled rows of files whose lines belong together. `columns` are those of the texts and labels.

    A number that stands for a label gets its name from the file `mapping.txt` beside the files of train, if there is one, with a number and
    a name in each line. With `skip_empty`, lines with an empty text are left out. Raises Refusal if a file is missing, or has more or fewer lines than the other.
    """
    text, label = columns.text, columns.labels[0]
    rows, notes = list[LabelledRow](), list[str]()
    names: dict[str, str] = {}
    for split, files in found.items():
        if split == TEST and (missing := [column for column in (text, label) if column not in files]):
            notes.append(unused(next(iter(files.values())), missing[0], [label]))
            continue
        for key, column in columns.named:
            if column not in files:
                raise Refusal(
                    f"{key}: is {shown(column)}, but the files of {split} in {root} are {shown(', '.join(files))}: write one of these"
                )
        path = files[str(text)]
        texts, labels = lines_of(path, encoding), lines_of(files[str(label)], encoding)
        if len(texts) != len(labels):
            raise Refusal(
                f"source.root: {shown(path)}: has {len(texts)} lines, but {shown(files[str(label)])} has {len(labels)}: make them equal"
            )
        mapping = path.with_name(MAPPING)
        if split == TRAIN and mapping.exists():
            pairs = [line.split("\t") if "\t" in line else line.split(maxsplit=1) for line in lines_of(mapping, encoding)]
            names = {number: name for number, name, *_ in (pair for pair in pairs if len(pair) > 1)}
        for number, (written, name) in enumerate(zip(texts, labels, strict=True), 1):
            if skip_empty and tables.is_empty(written):
                rows.append(LabelledRow(path, number, "", "", split))
                continue
            place = f"source.root: {shown(path)}:{number}"
            rows.append(
                LabelledRow(
                    path,
                    number,
                    tables.checked_text(written.rstrip("\r"), place, tables.FILL_OR_SKIP),
                    class_label(names.get(name.strip(), name), place),
                    split,
                )
            )
    rows, notes = without_empty(rows, notes) if skip_empty else (rows, notes)
    return ClassLabels([label]).of(rows, notes, (), root)


def read_class_files(classes: Mapping[Path, str], root: Path, encoding: str) -> Labelled:
    """Return a labelled row for each line that is not blank of the files of text `classes`, whose values are the labels of their lines."""
    rows = list[LabelledRow]()
    for path, label in classes.items():
        place, split = f"source.root: {shown(path)}", split_in(str(path.parent.relative_to(root))) or TRAIN
        for number, line in enumerate(lines_of(path, encoding), 1):
            if line.strip():
                rows.append(LabelledRow(path, number, tables.checked_text(line.strip(), place), class_label(label, place), split))
    return ClassLabels([]).of(rows, [], (), root)


def read(found: Tables, columns: Columns, labels: Labels, root: Path, encoding: str, *, skip_empty: bool) -> Labelled:
    """Return the labelled rows of the tables `found` in `root`. `columns` and `labels` are those of `tables.read`; a column of splits takes precedence
    over names.

    A table of the test split that lacks a column, or has no labels, is left out. So are rows with an empty text or path, if `skip_empty`. Raises Refusal like `tables.read`, or if the labels do not fit each other.
    """
    rows, notes = list[LabelledRow](), list[str]()
    for split, paths in found.items():
        for path in paths:
            try:
                rows += tables.read(path, columns, labels, split, encoding=encoding, keep_empty=skip_empty)
            except MissingColumn as error:
                if split != TEST:
                    error.table = path
                    raise
                notes.append(unused(path, error.column, columns.labels))
    if skip_empty and columns.text is not None:
        rows, notes = without_empty(rows, notes)
    first = found[TRAIN][0]
    stored = parquet.class_names(first, columns.labels[0]) if tables.suffix_of(first) == parquet.SUFFIX else []
    return labels.of(rows, notes, stored, root)


def sample_keys(labelled: Labelled, root: Path) -> dict[str, list[str]]:
    """Return the file, relative to `root`, and the line of each row of each split."""
    keys: dict[str, list[str]] = {split: [] for split in labelled.targets}
    for row in labelled.rows:
        name = row.path.relative_to(root).as_posix() if row.path != root else row.path.name
        keys[row.split].append(f"{name}:{row.line}")
    return keys


def unused(path: Path, column: object, labels: Sequence[Column]) -> str:
    """Return the sentence about a table of test that lacks `column`. `labels` are the columns of the labels."""
    return f"{path} has no {f'labels ({column})' if column in labels else f'column {shown(column)}'} and is not used"


def without_empty(rows: list[LabelledRow], notes: list[str]) -> tuple[list[LabelledRow], list[str]]:
    """Return the rows that have a text, and `notes` with a sentence about the others."""
    empty = [row.place for row in rows if not row.text or row.label == ""]
    sentence = f"{counted(len(empty), 'row')} without a text left out (source.on_corrupt): {listed(empty, MOST_EMPTY)}"
    return [row for row in rows if row.text and row.label != ""], [*notes, sentence] if empty else notes
