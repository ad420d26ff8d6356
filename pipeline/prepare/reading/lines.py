"""Files of text whose lines are samples: with a label in each line, or with the texts of one class in each file."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePath, PurePosixPath

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.split_names import SPLIT_NAMES

FIELD_SEPARATORS = ("\t", " ||| ", "|||", ";", "|")
LABEL_WORD = re.compile(r"__label__\S+|-?\d+|[A-Z]+:\w+")
"""A label before the text: as fastText writes it, a whole number, or a class with a subclass such as `NUM:date`."""
SEVERAL = "__label__"
MOST_OTHERS = 0.05
"""If fewer lines have another number of fields, these lines are mistakes."""
FEWEST_LINES = 20
DOCUMENTS = ("readme", "license", "licence")
"""The beginnings of the names of files that describe a dataset."""
NO_TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".npy", ".npz")


class WrongLines(Refusal):
    """Raised for a file whose lines have labels, and one of them too many or too few fields."""


def parsed(content: str, place: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line that is not blank, from 1, and its fields; the whole line is one field if nothing divides all lines.

    `place` names the file in messages. Raises WrongLines if a line has several labels, or like `separator`.
    """
    lines = [line.rstrip("\r") for line in content.split("\n")]
    sign = separator(lines, place)
    for number, line in enumerate(lines, 1):
        if line.strip():
            first = line.split(" ", 1)[0]
            fields = (
                [field.strip() for field in line.split(sign, 1 if sign == " " and LABEL_WORD.fullmatch(first) else -1)] if sign else [line]
            )
            if sign == " " and fields[1].startswith(SEVERAL):
                raise WrongLines(f"{place}:{number}: has several labels, which no source reads: leave one in each line")
            yield number, fields


def separator(lines: Sequence[str], place: str) -> str | None:
    """Return what divides all lines that are not blank into equally many fields, or None if nothing does.

    It is one of FIELD_SEPARATORS, a comma or a space if all lines begin with the name of an image, but for a line of names, or the space after
    the first word if all first words are like LABEL_WORD. Raises WrongLines, with the
    line, if it is a tab or a bar that divides all lines but a few.
    """
    filled = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    for sign in FIELD_SEPARATORS:
        counts = Counter(line.count(sign) for line in filled.values())
        most, num_lines = counts.most_common(1)[0] if counts else (0, 0)
        if most and num_lines == len(filled):
            return sign
        if most and sign != ";" and len(filled) >= FEWEST_LINES and len(filled) - num_lines <= MOST_OTHERS * len(filled):
            number, line = next((number, line) for number, line in filled.items() if line.count(sign) != most)
            raise WrongLines(f"{place}:{number}: has {line.count(sign) + 1} fields, but most lines have {most + 1}: make them equal")
    for sign in (",", " "):
        are_images = [line.split(sign, 1)[0].strip().lower().endswith(IMAGE_SUFFIXES) for line in filled.values()][1:]
        if are_images and all(are_images) and len({line.count(sign) for line in filled.values()} | {0}) == 2:
            return sign
    words = {line.split(" ", 1)[0] for line in filled.values()}
    return " " if words and all(" " in line for line in filled.values()) and all(map(LABEL_WORD.fullmatch, words)) else None


def class_files(names: Sequence[str], pattern: str | None) -> Mapping[str, str]:
    """Return the class of each file among `names`, those in a folder, that holds the texts of one class, line by line; {} if there are none.

    The class is called like the file without its suffix, or like the suffix if that alone differs: `neg.txt`, or `reviews.neg`. All files
    must be directly in the folder or in folders of splits, such as `train`, and no tables or images, but for DOCUMENTS. `pattern` chooses some, in as
    many folders as it names.
    """
    matches = (name for name in names if pattern is None or (fnmatch(name, pattern) and name.count("/") == pattern.count("/")))
    chosen = [name for name in matches if not is_document(name)]
    are_of_splits = all(part.lower() in SPLIT_NAMES for name in chosen for part in name.split("/")[:-1])
    if not are_of_splits or any(name.lower().removesuffix(".gz").endswith((*NO_TEXTS, *IMAGE_SUFFIXES)) for name in chosen):
        return {}
    plain = {name: PurePosixPath(name.removesuffix(".gz")) for name in chosen}
    stems = {path.stem for path in plain.values()}
    found = {name: path.suffix[1:] if len(stems) == 1 else path.stem for name, path in plain.items()}
    is_unique = len({(path.parent, found[name]) for name, path in plain.items()}) == len(found)
    return found if is_unique and len(set(found.values())) > 1 else {}


def is_document(name: str | PurePath) -> bool:
    return PurePath(name).name.lower().startswith(DOCUMENTS)
