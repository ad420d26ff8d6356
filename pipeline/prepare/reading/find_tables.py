"""Finds the tables of each split in a folder."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pipeline.core.raw_dataset import SPLITS, TRAIN
from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import archives, lines, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, visible_parts
from pipeline.prepare.reading.names import SPLIT_NAMES, split_in, split_of_folder, words

TABLES = ", ".join(tables.FORMATS)
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
        candidates = [path for path in candidates if all(map(split_of_folder, path.parts[:-1]))]
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
            remedy = f"add a table called train with one of the suffixes {TABLES}"
            raise Refusal(f"source.root: {root}: has {', '.join(alone)}, but no table of train: {remedy}")
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
        folders = [part for part in path.parts[:-1] if not split_of_folder(part)]
        stem = stem_of(path)
        around = {split for part in path.parts[:-1] if (split := split_of_folder(part))}
        split = split_in(stem) or (around.pop() if len(around) == 1 else None)
        if split:
            others = [word for word in words(stem) if word not in SPLIT_NAMES and word != "of" and not word.isdigit()]
            groups[(*folders, "/", *others)][split].append(path)
    return groups


def is_table(path: Path | PurePosixPath, *, of_lines: bool) -> bool:
    """Return True if a file is a table by its name, or with `of_lines` may be a file of text that is none."""
    known, others = bool(tables.suffix_of(Path(path))), (*IMAGE_SUFFIXES, *archives.SUFFIXES)
    return not (known or lines.is_document(path) or path.name.lower().endswith(others)) if of_lines else known


def stem_of(path: PurePosixPath) -> str:
    """Return the name of a table without its suffix, unless that is a split, as in `trec.train`."""
    known = tables.suffix_of(Path(path))
    if known:
        return path.name[: path.name.lower().rindex(known)]
    return path.name if path.suffix[1:].lower() in SPLIT_NAMES else path.stem
