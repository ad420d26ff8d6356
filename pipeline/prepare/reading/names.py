"""Reads names: several spellings of one class become one name, classes get their order, and folders and files are found to be splits."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.core.cells import as_truth
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import canonical, shown
from pipeline.prepare.reading.file_tree import name_bytes

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
    **dict.fromkeys(("train", "training", "trainset"), TRAIN),
    **dict.fromkeys(("valid", "val", "validation", "dev", "devset"), VALID),
    **dict.fromkeys(("test", "testing", "testset"), TEST),
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


def split_of_value(value: object, column: str, place: str = "") -> str:
    """Return the split that `value` in the column `column` means: a text with the name of one split, or a truth value if the column has a name
    like `is_test`.

    Raises Refusal, which begins with `place`, if it means none.
    """
    named = split_in(column)
    if meant := split_in(str(value)):
        return meant
    if named and (is_so := as_truth(str(value).strip().lower())) is not None:
        return named if is_so else (TEST if named == TRAIN else TRAIN)
    raise Refusal(
        f"the column {shown(column, 60)} has {shown(value, 60)}, which is no split: write train, valid or test, or true or false in a column "
        "that is called like a split, or set source.split_column to null",
        place=place,
    )
