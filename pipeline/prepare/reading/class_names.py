"""Names of classes: what is one name in several spellings, and the order of the classes."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
