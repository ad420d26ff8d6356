"""Reads names: several spellings become one class, folders and files are found to be splits, and files in folders by class get their class."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.cells import as_truth
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal, counted
from pipeline.core.spec import Targets
from pipeline.core.untrusted import canonical, shown
from pipeline.prepare.reading.archives import MAX_DEPTH, alone
from pipeline.prepare.reading.file_tree import Listing, name_bytes

MAX_NAME_LENGTH = 255
SIGNED = re.compile(r"\+(\d+)|-(0+)")
"""Numbers that are the same without their sign."""
NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


class ClassNames(NamedTuple):
    """The names of the classes in their order, the number of the class that each canonical name means, and sentences about joined names."""

    names: tuple[str, ...]
    numbers: Mapping[str, int]
    notes: tuple[str, ...]


def joined_by(name: str) -> str:
    """Return what is equal for the names of one class."""
    if signed := SIGNED.fullmatch(name):
        return signed[1] or signed[2]
    return name.casefold() if len(name) > 1 else name


def joined(found: Iterable[str]) -> ClassNames:
    """Return the classes that the names in `found` mean: whole numbers ordered by their values, any other names in byte order.

    Names that differ only in case, such as `Cat` and `cat`, or in the sign of the same number, such as `+1` and `1`, are one class, called
    like the last of them in byte order. Single letters are not joined: they are classes where letters are recognised.
    """
    spellings: dict[str, list[str]] = {}
    for name in sorted({canonical(name) for name in found}, key=name_bytes):
        spellings.setdefault(joined_by(name), []).append(name)
    names = sorted((several[-1] for several in spellings.values()), key=name_bytes)
    if all(NUMBER.fullmatch(name) for name in names):
        names.sort(key=int)
    positions = {name: position for position, name in enumerate(names)}
    numbers = {name: positions[several[-1]] for several in spellings.values() for name in several}
    notes = [
        f"{shown(', '.join(several), 120)} are one class, because they differ only in "
        + ("the sign of one number" if any(map(SIGNED.fullmatch, several)) else "upper and lower case")
        for several in spellings.values()
        if len(several) > 1
    ]
    return ClassNames(tuple(names), numbers, tuple(notes))


SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trainset", "trn"), TRAIN),
    **dict.fromkeys(("valid", "val", "validation", "dev", "devset"), VALID),
    **dict.fromkeys(("test", "testing", "testset", "tst"), TEST),
}
AROUND = {"is", "in", "for", "set", "split"}
"""The other words in the name of a column of truth values that certainly is one of splits, such as `is_test`."""
BESIDE = {"set", "split", "data", "dataset", "images", "image", "imgs", "img", "folder"}
"""The other words in the name of a folder that is a split, such as `training_set` or `test1`."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W0-9A-Za-z_]+")


def words(name: str) -> list[str]:
    """Return the words and numbers in a name, such as `train`, `labels` and `2` for `trainLabels_2`, in lower case."""
    return [word.lower() for word in WORD.findall(name)]


def split_in(name: str) -> str | None:
    """Return the split that a word in `name` means, or None if none or several are meant."""
    found = {SPLIT_NAMES[word] for word in words(name) if word in SPLIT_NAMES}
    return found.pop() if len(found) == 1 else None


def split_of_folder(name: str) -> str | None:
    """Return the split that a folder is, if its name has no words but that of a split and those of BESIDE; else None."""
    return split_in(name) if all(word in SPLIT_NAMES or word in BESIDE or word.isdigit() for word in words(name)) else None


def splits_among(folders: Iterable[str]) -> dict[str, str]:
    """Return the split of each folder that is one: by its own name, or if there is none, because names such as `seg_train` and `seg_test` differ
    only in the word for a split.
    """
    names = sorted(folders)
    if found := {name: split for name in names if (split := split_of_folder(name))}:
        return found
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        if split := split_in(name):
            groups.setdefault(tuple(word for word in words(name) if word not in SPLIT_NAMES), {})[name] = split
    return next((group for group in groups.values() if TRAIN in group.values() and len({*group.values()}) == len(group) > 1), {})


def is_certain(column: str, values: Iterable[str]) -> bool:
    """Return True if the name of a column with `values`, which all mean splits, or the values themselves leave no doubt that it names splits.

    A column of truth values called `test_result` may hold labels.
    """
    return any(map(split_in, values)) or all(word in SPLIT_NAMES or word in AROUND for word in words(column))


def split_of_value(value: object, column: str) -> str:
    """Return the split that `value` in the column `column` means: a text with the name of one split, or a truth value if the column has a name
    like `is_test`. Raises Refusal if it means none.
    """
    named = split_in(column)
    if meant := split_in(str(value)):
        return meant
    if named and (is_so := as_truth(str(value).strip().lower())) is not None:
        return named if is_so else (TEST if named == TRAIN else TRAIN)
    raise Refusal(
        f"the column {shown(column, 60)} has {shown(value, 60)}, which is no split: write train, valid or test, or true or false in a column "
        "that is called like a split, or set source.split_column to null"
    )


DESKTOP_FILES = {"thumbs.db", "desktop.ini", "__macosx"}
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2"),
    *(".heic", ".heif"),  # which cannot be read: the decoder says so
)
EXPECTED_LAYOUT = "SPLIT/CLASS/file (SPLIT is train, valid or test) or CLASS/file"

UNLABELLED = {"unsup", "unlabeled", "unlabelled"}
"""Names of folders beside the classes whose samples have none, such as in the reviews of IMDb."""

Parts = tuple[str, ...]


class Sample(NamedTuple):
    """A file that is one sample. Its class number is `ClassFolders.targets[split][position]`."""

    name: str
    split: str
    position: int


@dataclass(frozen=True)
class ClassFolders:
    """Holds what the file names of a dataset say: its class names, its samples, and the class numbers of the samples of each split, `targets`.

    `classes` are in the order of `joined`, or of the data, and a class number is an index in `classes`. `samples` are in the order of the
    file names in the Listing.
    """

    classes: tuple[str, ...]
    samples: list[Sample]
    targets: Mapping[str, NDArray[Any]]
    outer: int = 0
    """The number of folders that enclose the dataset."""
    notes: tuple[str, ...] = ()
    """Sentences about what is not used."""
    task: Targets | None = None
    """The description of `targets` that come from a table; None if they are numbers of `classes`."""
    groups: Callable[[], Iterable[bytes]] | None = None
    """Returns the group of each sample of train, if a table names them."""

    def names(self) -> dict[str, list[str]]:
        """Return the names of the files of each split, by position."""
        found: dict[str, list[str]] = {split: [] for split in self.targets}
        for sample in self.samples:
            found[sample.split].append(sample.name)
        return found

    def paths(self) -> list[bytes]:
        """Return the path of each sample of train, by position. It is the same in a folder, in an archive, and in an enclosing folder."""
        return [name_bytes("/".join(visible_parts(name)[self.outer :])) for name in self.names()[TRAIN]]


def find_classes(listing: Listing, place: str, suffixes: tuple[str, ...] = ()) -> ClassFolders:
    """Return the classes, samples and targets that follow from the file names in `listing`. `place` names the dataset in messages.

    A file may be in subfolders of its class folder. If the folder of the test split, or one beside the splits, has no class folders, its
    files have no labels, and are not used; so are those of a split in one folder that is no class of train, such as `val/images`. If some files have one of `suffixes`, those with another suffix are not used. Raises Refusal if the
    files are not arranged as EXPECTED_LAYOUT says, or if the name of a split or class is invalid.
    """
    files = [(name, parts) for name in listing.files if (parts := visible_parts(name))]
    if deep := next((name for name, parts in files if len(parts) > MAX_DEPTH), None):
        raise Refusal(f"source.root: {place}: has no files arranged as {EXPECTED_LAYOUT} ({shown(deep, 60)} is too deep): arrange them so")
    folders = {parts[:depth] for parts in map(visible_parts, listing.folders) for depth in range(1, min(len(parts), MAX_DEPTH) + 1)}
    folders |= {parts[:depth] for _, parts in files for depth in range(1, len(parts))}
    outer = num_enclosing(folders)
    files = [(name, parts[outer:]) for name, parts in files if len(parts) > outer]
    doubled = {parts[0] for _, parts in files} - {parts[0] for _, parts in files if len(parts) < 3 or parts[1] != parts[0]}
    files = [(name, parts[parts[0] in doubled :]) for name, parts in files]
    if all(len(parts) == 1 for _, parts in files):
        raise Refusal(f"source.root: {place}: has no files arranged as {EXPECTED_LAYOUT}: arrange them so")
    nested = {parts[0] for _, parts in files if len(parts) > 2}
    tops = {parts[0] for _, parts in files if len(parts) > 1}
    possible = splits_among(tops)
    splits = split_names(nested, possible, place) if nested & possible.keys() else {}
    if not splits:
        refuse_several_sets(nested, files, place)
    unlabelled = {top for top in tops - splits.keys() if splits and possible.get(top) in (TEST, None)} | one_folder(files, splits)
    splits = {top: split for top, split in splits.items() if top not in unlabelled}
    unused = [name for name, parts in files if parts[0] in unlabelled]
    files = [(name, parts) for name, parts in files if parts[0] not in unlabelled]
    depth = 3 if splits else 2
    stray = [name for name, parts in files if len(parts) < depth and name.lower().endswith(IMAGE_SUFFIXES)]
    if stray:
        more, them = (f", like {counted(len(stray) - 1, 'other image')}", "them") if stray[1:] else ("", "it")
        problem = f"{place}: {shown(stray[0])}: is not in a class folder{more}"
        raise Refusal(f"source.root: {problem}: arrange the files as {EXPECTED_LAYOUT}, or remove {them}")
    unused += [name for name, parts in files if len(parts) >= depth and parts[depth - 2].lower() in UNLABELLED]
    notes = [f"{unused[0]} and the other files of this folder have no labels and are not used ({len(unused)} in total)"] if unused else []
    files = [(name, parts) for name, parts in files if len(parts) >= depth and parts[depth - 2].lower() not in UNLABELLED]
    if any(name.lower().endswith(suffixes) for name, _ in files):
        others = {name: suffix for name, _ in files if (suffix := PurePosixPath(name).suffix) and not name.lower().endswith(suffixes)}
        files = [(name, parts) for name, parts in files if name not in others]
        counts = Counter(others.values())
        notes += [f"not used, because of the suffix {shown(suffix, 20)}: {counted(count, 'file')}" for suffix, count in counts.items()]
    below = (parts[outer:] for parts in folders if len(parts) > outer and parts[outer] not in unlabelled)
    labelled = {parts[parts[0] in doubled and len(parts) > 1 :] for parts in below}
    classes = class_names(labelled, splits, {parts[depth - 2] for _, parts in files}, place)
    return replace(build(files, splits, classes), outer=outer, notes=(*classes.notes, *notes))


def one_folder(files: Sequence[tuple[str, Parts]], splits: Mapping[str, str]) -> set[str]:
    """Return the folders of splits other than train that have one folder each, which none of several classes of train is called like."""
    inside = {top: {parts[1] for _, parts in files if parts[0] == top and len(parts) > 2} for top in splits}
    of_train = {name for top, names in inside.items() if splits[top] == TRAIN for name in names}
    return {top for top, names in inside.items() if len(of_train) > 1 == len(names) and not names & of_train}


def visible_parts(name: str) -> Parts:
    """Return the parts of a path, or () if the file is to be ignored.

    A file is ignored if a part of its path is hidden, or is the name of a file or folder that desktop software creates (`DESKTOP_FILES`).
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return () if any(part.startswith(".") or part.lower() in DESKTOP_FILES for part in parts) else parts


def num_enclosing(folders: set[Parts]) -> int:
    """Return how many folders enclose the dataset, one in the other. Such a folder is the only one, no split, and has folders.

    `folders` are all folders of the dataset.
    """
    outer = 0
    while len(tops := {parts[outer] for parts in folders if len(parts) > outer}) == 1:
        if split_of_folder(*tops) or not any(len(parts) > outer + 1 for parts in folders):
            break
        outer += 1
    return outer


def refuse_several_sets(nested: set[str], files: Sequence[tuple[str, Parts]], place: str) -> None:
    """Raise Refusal if several of the folders `nested`, which contain folders, contain folders of the same names.

    These may be the classes, such as in `fold1/cat` and `fold2/cat`, or in `v1/data/cat` and `v2/data/cat` if they have most of the files. One name,
    such as `cat/images` and `dog/images`, is none.
    """
    inside = [{parts[1] for _, parts in files if parts[0] == top and len(parts) > 2} for top in sorted(nested)]
    common, parent = set.intersection(*inside) if len(inside) > 1 else set[str](), tuple[str, ...]()
    if len(common) < 2 and not any(map(split_of_folder, common)):
        sizes = Counter(parts[:-1] for _, parts in files if len(parts) > 3)
        of_parent = Counter[Parts]()
        for folder, size in sizes.items():
            of_parent[folder[1:-1]] += size
        parent = max(of_parent, key=of_parent.__getitem__, default=())
        tops = Counter(folder[-1] for folder in sizes if folder[1:-1] == parent)
        shared = [folder for folder in sizes if folder[1:-1] == parent and tops[folder[-1]] > 1]
        is_most = 2 * sum(sizes[folder] for folder in shared) > len(files)
        nested, common = {folder[0] for folder in shared}, {folder[-1] for folder in shared} if is_most else set()
    if len(common) > 1 or any(map(split_of_folder, common)):
        paths = {
            "/".join((*visible_parts(name)[: 1 - len(parts)], *parent)) for name, parts in files if len(parts) > 2 and parts[0] in nested
        }
        raise Refusal(
            f"source.root: {place}: the folders {shown(', '.join(sorted(nested)))} have folders of the same names ({shown(', '.join(sorted(common)))}), "
            f"so it is not clear which are the classes: {alone(Path(place), 'one of these folders', sorted(paths))}, "
            f"or arrange the files as {EXPECTED_LAYOUT}"
        )


def split_names(top_folders: set[str], possible: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the split that each top folder belongs to, as `possible` says; for example, `val` belongs to valid.

    Raises Refusal if a folder belongs to none, if two folders belong to one split, or if train is missing.
    """
    if unknown := sorted(top_folders - possible.keys()):
        problem = f"{place}: {shown(unknown[0])}/ contains folders but is not a split"
        raise Refusal(f"source.root: {problem}: move it away, or arrange the files as {EXPECTED_LAYOUT}")
    splits = {top: possible[top] for top in sorted(top_folders)}
    if len(set(splits.values())) < len(splits):
        duplicates = [top for top, split in splits.items() if list(splits.values()).count(split) > 1]
        raise Refusal(f"source.root: {place}: has two folders for one split ({', '.join(duplicates)}): keep one folder")
    if TRAIN not in splits.values():
        raise Refusal(f"source.root: {place}: has {', '.join(splits)}, but no train folder with files: add one")
    return splits


def class_names(folders: set[Parts], splits: Mapping[str, str], used: set[str], place: str) -> ClassNames:
    """Return the names of the class folders that are in `used`, those with files, and a note about the others.

    `folders` are the folders below the enclosing folder. `splits` maps each split folder to its split; it is empty if there are none.
    Raises Refusal if a split folder has no class folder with files, or if a name is too long or cannot be printed.
    """
    if splits:
        empty = sorted({parts[0] for parts in folders if split_of_folder(parts[0])} - set(splits))
        if empty:
            problem = f"{place}: {shown(empty[0])}/ contains no class folder with files"
            raise Refusal(f"source.root: {problem}: add class folders with files, or remove it")
        names = {parts[1] for parts in folders if len(parts) == 2 and parts[0] in splits}
    else:
        names = {parts[0] for parts in folders if len(parts) == 1}
        if splits_among(names).keys() == names:
            problem = f"{place}: has splits ({', '.join(sorted(names))}) without class folders"
            raise Refusal(f"source.root: {problem}: arrange the files as {EXPECTED_LAYOUT}")
    for name in names:
        if not name.isprintable():
            raise Refusal(f"source.root: {place}: the folder {shown(name)} has a name that cannot be printed: rename it")
        if len(name) > MAX_NAME_LENGTH:
            problem = f"the folder {shown(name)} has a name of {len(name)} characters, more than {MAX_NAME_LENGTH}"
            raise Refusal(f"source.root: {place}: {problem}: rename it")
    found = joined(names & used or names)
    empty = sorted(name for name in names if canonical(name) not in found.numbers and name.lower() not in UNLABELLED)
    return found._replace(notes=(*found.notes, f"not classes, because without files: {shown(', '.join(empty), 120)}")) if empty else found


def build(files: list[tuple[str, Parts]], splits: Mapping[str, str], classes: ClassNames) -> ClassFolders:
    targets: dict[str, list[int]] = {split: [] for split in splits.values()} or {TRAIN: []}
    samples = []
    for name, parts in files:
        split = splits[parts[0]] if splits else TRAIN
        samples.append(Sample(name, split, len(targets[split])))
        targets[split].append(classes.numbers[canonical(parts[1 if splits else 0])])
    return ClassFolders(classes.names, samples, {split: np.array(values, dtype=np.int64) for split, values in targets.items()})
