"""Finds the tables of each split in a folder or archive, by the names of the files or by their contents."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from glob import has_magic
from pathlib import Path, PurePosixPath

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import archives
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, SPLIT_NAMES, split_in, split_of_folder, visible_parts, words
from pipeline.prepare.reading.streams import unpacked_name
from pipeline.prepare.reading.table_formats import NO_LINES, TABLES, is_document, named_suffix, suffix_of

MOST_FILES = 100
"""In a folder with more files, none of them called like a table, no table is searched for by content."""
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
    a split, all tables with such a name belong to train. A pattern may choose several sets, which are then one. Without it, the set with the
    shortest paths counts. With `of_lines`, the tables are files of text with a label in each line. Raises SeveralSets if several are left, and
    Refusal if there is no table for train.
    """
    if not root.is_dir() and not root.name.lower().endswith(archives.SUFFIXES):
        return {TRAIN: [root]} if is_table(root, of_lines=of_lines) else {}
    if of_lines:  # the files in other folders are texts by class
        candidates = [path for path in in_splits(map(PurePosixPath, visible_files(root))) if is_table(path, of_lines=True)]
    else:
        candidates = tables_in(root, table)
    groups = by_name(candidates)
    of_train = [each for found in groups.values() for each in of_one_format(found) if TRAIN in each]
    if table is not None:
        of_train = [found for found in of_train if any(fnmatch(str(path), table) for path in found[TRAIN])]
        if not of_train:
            chosen = [root / path for path in candidates if fnmatch(str(path), table)]
            return {TRAIN: chosen} if chosen else {}
    depth = min((len(found[TRAIN][0].parts) for found in of_train), default=0)
    sets = [found for found in of_train if len(found[TRAIN][0].parts) == depth]
    if len(sets) > 1 and table is not None and has_magic(table):
        return {split: joined for split in SPLITS if (joined := [root / path for found in sets for path in found.get(split, ())])}
    if len(sets) > 1:
        raise SeveralSets(root, [[root / path for path in found[TRAIN]] for found in sets])
    if not sets:
        every = [
            (split == TEST, str(path))
            for found in groups.values()
            for split, paths in found.items()
            for path in paths
            if len(path.parts) == 1
        ]
        if alone := [name for _, name in sorted(every)]:
            remedy = f"add a table called train with one of the suffixes {TABLES}; or, to read one alone, write {shlex.quote(f'data={root / alone[0]}')}"
            raise Refusal(f"source.root: {root}: has {', '.join(alone)}, but no table of train: {remedy}")
        return {}
    refuse_doubled(root, sets[0])
    return {split: [root / path for path in sets[0][split]] for split in SPLITS if split in sets[0]}


def refuse_doubled(root: Path, found: Mapping[str, Sequence[PurePosixPath]]) -> None:
    """Raise Refusal if a split has several tables that are no parts of one: if their names have no numbers, or other suffixes."""
    for split, paths in found.items():
        are_parts = all(set(map(str.isdigit, words(path.stem))) == {False, True} for path in paths)
        if len(paths) > 1 and (not are_parts or len({path.suffix for path in paths}) > 1):
            remedy = f"move one to another folder, or, to read one alone, write its path: {shlex.quote(f'data={root / paths[0]}')}"
            raise Refusal(f"source.root: {root}: has two tables of {split} ({paths[0]}, {paths[1]}): {remedy}")


def tables_in(root: Path, table: str | None = None) -> list[PurePosixPath]:
    """Return the tables in a folder or archive: the files that are called so or, in a folder without such files but .json and without images or arrays,
    those that are tables by their content. If the pattern `table` matches only such files, both count.
    """
    files = [PurePosixPath(name) for name in visible_files(root)]
    found = [path for path in files if named_suffix(path)]
    if not root.is_dir():
        return found or [path for path in files if path.name == root.name and suffix_of(root)]
    chosen = [path for path in files if fnmatch(str(path), table)] if table is not None else []
    has_others = any(path.suffix.lower() != ".json" for path in found) or any(
        path.name.lower().endswith((*IMAGE_SUFFIXES, ".npy", ".npz")) for path in files
    )
    if {*chosen} & {*found} or (has_others and not chosen):
        return found
    beside = [path for path in in_splits(files) if path not in found]
    named = {*chosen, *(beside if len(beside) <= MOST_FILES else ())}
    of_rows = [path for path in files if path in named and suffix_of(root / path)]
    refuse_short(root, of_rows, [path for path in files if path in named and path not in of_rows])
    return found + of_rows


def refuse_short(root: Path, of_rows: Sequence[PurePosixPath], others: Sequence[PurePosixPath]) -> None:
    """Raise Refusal if one of `others` is called like another split of one of `of_rows`, but its lines are too few to tell that it is a table."""
    known = {(path.suffix, *plain_words(path.stem)): path for path in of_rows}
    for path in others:
        like = known.get((path.suffix, *plain_words(path.stem)))
        if like and split_in(path.stem):
            problem = f"does not look like rows, as {shown(like)} does: call both .csv, or remove one"
            raise Refusal(f"source.root: {shown(root / path)}: {problem}")


def plain_words(name: str) -> list[str]:
    """Return the words of a name that mean no split, and are no numbers."""
    return [word for word in words(name) if word not in SPLIT_NAMES and word != "of" and not word.isdigit()]


def in_splits(files: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """Return the files that are in no folder, or only in folders of splits."""
    several = [*files]
    folders = {folder for folder in {path.parent for path in several} if all(map(split_of_folder, folder.parts))}
    return [path for path in several if path.parent in folders]


def by_name(candidates: Iterable[PurePosixPath]) -> dict[tuple[str, ...], dict[str, list[PurePosixPath]]]:
    """Return the tables of each split in each set of tables whose folders and names are equal but for words that mean a split, and numbers."""
    groups: dict[tuple[str, ...], dict[str, list[PurePosixPath]]] = defaultdict(lambda: defaultdict(list))
    for path in candidates:
        folders = [part for part in path.parts[:-1] if not split_of_folder(part)]
        stem = stem_of(path)
        around = {split for part in path.parts[:-1] if (split := split_of_folder(part))}
        split = split_in(stem) or (around.pop() if len(around) == 1 else None)
        if split:
            groups[(*folders, "/", *plain_words(stem))][split].append(path)
    return groups


def of_one_format(found: Mapping[str, Sequence[PurePosixPath]]) -> list[Mapping[str, Sequence[PurePosixPath]]]:
    """Return the tables of each split, as several sets if train has some with equal names and other suffixes, such as `train.json` and `train.tsv`."""
    repeated = sorted({path.suffix for path in found.get(TRAIN, ())})
    if len(repeated) < 2:
        return [found]
    others = {split: paths for split, paths in found.items() if not {path.suffix for path in paths} & {*repeated}}
    sets = [{split: [path for path in paths if path.suffix == suffix] for split, paths in found.items()} for suffix in repeated]
    return [{split: paths for split, paths in {**each, **others}.items() if paths} for each in sets]


def is_table(path: Path | PurePosixPath, *, of_lines: bool) -> bool:
    """Return True if a file is a table by its name, or with `of_lines` may be a file of text that is none."""
    if not of_lines:
        return bool(suffix_of(Path(path)))
    return not (
        named_suffix(path)
        or is_document(path)
        or unpacked_name(path.name.lower()).endswith(NO_LINES)
        or path.name.lower().endswith(archives.SUFFIXES)
    )


def stem_of(path: PurePosixPath) -> str:
    """Return the name of a table without its suffix, unless that is a split, as in `trec.train`."""
    if known := named_suffix(path):
        return path.name[: path.name.lower().rindex(known)]
    return path.name if path.suffix[1:].lower() in SPLIT_NAMES else path.stem
