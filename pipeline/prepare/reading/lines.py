"""Files of text whose lines are samples: with a label in each line, or with the texts of one class in each file."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePath, PurePosixPath

SEPARATORS = ("\t", " ||| ", "|||")
LABEL = re.compile(r"__label__\S+|-?\d+|[A-Z]+:\w+")
"""A label before the text: as fastText writes it, a whole number, or a class with a subclass such as `NUM:date`."""
MOST_LABELS = 1000
DOCUMENTS = ("readme", "license", "licence")
"""The beginnings of the names of files that describe a dataset."""


def parsed(content: str, place: str) -> Iterator[tuple[int, list[str]]]:  # noqa: ARG001  # as the parsers of tables
    """Yield the number of each line that is not blank, from 1, and its fields: two or more, or the whole line if lines have no labels."""
    lines = [line.rstrip("\r") for line in content.split("\n")]
    sign = separator(lines)
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, [field.strip() for field in line.split(sign, 1 if sign == " " else -1)] if sign else [line]


def separator(lines: Sequence[str]) -> str | None:
    """Return what divides the labels from the texts in all lines that are not blank, or None.

    It is one of SEPARATORS, which divides each line into equally many fields, or the space after a word like LABEL.
    """
    filled = [line for line in lines if line.strip()]
    for sign in SEPARATORS:
        if len({line.count(sign) for line in filled}) == 1 and sign in filled[0]:
            return sign
    first = Counter(line.split(maxsplit=1)[0] for line in filled if len(line.split(maxsplit=1)) == 2)
    repeated = 2 <= len(first) <= min(MOST_LABELS, len(filled) // 3)
    return " " if repeated and first.total() == len(filled) and all(map(LABEL.fullmatch, first)) else None


def class_files(names: Sequence[str], pattern: str | None) -> Mapping[str, str]:
    """Return the class of each file among `names`, those in a folder, that holds the texts of one class, line by line; {} if there are none.

    The class is called like the file without its suffix, or like the suffix if that alone differs: `neg.txt`, or `reviews.neg`. All files
    must be directly in the folder, but for DOCUMENTS. `pattern` chooses some of them.
    """
    chosen = [name for name in names if not is_document(name) and (pattern is None or fnmatch(name, pattern))]
    if any("/" in name for name in chosen):
        return {}
    plain = {name: PurePosixPath(name.removesuffix(".gz")) for name in chosen}
    stems = {path.stem for path in plain.values()}
    found = {name: path.suffix[1:] if len(stems) == 1 else path.stem for name, path in plain.items()}
    return found if len(set(found.values())) == len(found) > 1 else {}


def is_document(name: str | PurePath) -> bool:
    return PurePath(name).name.lower().startswith(DOCUMENTS)
