"""Files of text whose lines are samples: with a label in each line, or with the texts of one class in each file."""

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePath, PurePosixPath

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.delimited import Chunk, lines_of, of_rows
from pipeline.prepare.reading.names import split_of_folder
from pipeline.prepare.reading.streams import TextBlock, unpacked_name

FIELD_SEPARATORS = ("\t", " ||| ", "|||", ";", "|")
LABEL_WORD = re.compile(r"__label__\S+|-?\d+|[A-Z]+:\w+")
"""A label before the text: as fastText writes it, a whole number, or a class with a subclass such as `NUM:date`."""
SEVERAL = "__label__"
MOST_OTHERS = 0.05
"""If fewer lines have another number of fields, these lines are mistakes."""
FEWEST_LINES = 20
DOCUMENTS = ("readme", "license", "licence", "_about", "citation", "changelog")
"""The beginnings of the names of files that describe a dataset."""
NO_TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".npy", ".npz")


class WrongLines(Refusal):
    """Raised for a file whose lines have labels, and one of them too many or too few fields."""


def chunks(read: Callable[[], Iterable[TextBlock]], place: str) -> Generator[Chunk]:
    """Yield the fields of all lines that are not blank; the whole line is one field if nothing divides all lines.

    `read` returns the text of the file, from its beginning at each call. `place` names it in messages. Raises WrongLines if a line has several
    labels, or like `separator`.
    """
    sign = separator(lambda: filled(read()), place)

    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, line in filled(read()):
            first = line.split(" ", 1)[0]
            parts = line.split(sign, 1 if sign == " " and LABEL_WORD.fullmatch(first) else -1) if sign else [line]
            fields = [field.strip() for field in parts] if sign else parts
            if sign == " " and fields[1].startswith(SEVERAL):
                raise WrongLines(f"{place}:{number}: has several labels, which no source reads: leave one in each line")
            yield number, fields

    yield from of_rows(rows(), place)


def filled(blocks: Iterable[TextBlock]) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line that is not blank."""
    return ((number, line) for number, line in lines_of(blocks) if line.strip())


def separator(read: Callable[[], Iterable[tuple[int, str]]], place: str) -> str | None:
    """Return what divides all lines that are not blank into equally many fields, or None if nothing does.

    It is one of FIELD_SEPARATORS, a comma or a space if all lines begin with the name of an image, but for a line of names, or the space after
    the first word if all first words are like LABEL_WORD. `read` returns the lines with their numbers, at each call. Raises WrongLines, with the
    line, if it is a tab or a bar that divides all lines but a few.
    """
    counts = {sign: Counter[int]() for sign in (*FIELD_SEPARATORS, ",", " ")}
    are_images, are_labels, num_lines = {",": True, " ": True}, True, 0
    for num_lines, (_, line) in enumerate(read(), 1):
        for sign, found in counts.items():
            found[line.count(sign)] += 1
            if sign in are_images and num_lines > 1:
                are_images[sign] &= line.split(sign, 1)[0].strip().lower().endswith(IMAGE_SUFFIXES)
        are_labels = are_labels and " " in line and bool(LABEL_WORD.fullmatch(line.split(" ", 1)[0]))
    for sign in FIELD_SEPARATORS:
        most, times = counts[sign].most_common(1)[0] if num_lines else (0, 0)
        if most and times == num_lines:
            return sign
        if most and sign != ";" and num_lines >= FEWEST_LINES and num_lines - times <= MOST_OTHERS * num_lines:
            number, line = next((number, line) for number, line in read() if line.count(sign) != most)
            raise WrongLines(f"{place}:{number}: has {line.count(sign) + 1} fields, but most lines have {most + 1}: make them equal")
    for sign, fits in are_images.items():
        if fits and num_lines > 1 and len(counts[sign].keys() | {0}) == 2:
            return sign
    return " " if num_lines and are_labels else None


def class_files(names: Sequence[str], pattern: str | None) -> Mapping[str, str]:
    """Return the class of each file among `names`, those in a folder, that holds the texts of one class, line by line; {} if there are none.

    The class is called like the file without its suffix, or like the suffix if that alone differs: `neg.txt`, or `reviews.neg`. All files
    must be directly in the folder or in folders of splits, such as `train`, and no tables or images, but for DOCUMENTS. `pattern` chooses some, in as
    many folders as it names.
    """
    matches = (name for name in names if pattern is None or (fnmatch(name, pattern) and name.count("/") == pattern.count("/")))
    chosen = [name for name in matches if not is_document(name)]
    are_of_splits = all(split_of_folder(part) for name in chosen for part in name.split("/")[:-1])
    if not are_of_splits or any(unpacked_name(name.lower()).endswith((*NO_TEXTS, *IMAGE_SUFFIXES)) for name in chosen):
        return {}
    plain = {name: PurePosixPath(unpacked_name(name)) for name in chosen}
    stems = {path.stem for path in plain.values()}
    found = {name: path.suffix[1:] if len(stems) == 1 else path.stem for name, path in plain.items()}
    is_unique = len({(path.parent, found[name]) for name, path in plain.items()}) == len(found)
    return found if is_unique and len(set(found.values())) > 1 else {}


def is_document(name: str | PurePath) -> bool:
    return PurePath(name).name.lower().startswith(DOCUMENTS)
