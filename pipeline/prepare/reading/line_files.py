"""Files of text that are one table: line by line beside each other, or one file for each class."""

import posixpath
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import json_rows
from pipeline.prepare.reading.class_folders import SPLIT_NAMES, split_in, split_of_folder, words
from pipeline.prepare.reading.delimited import filled_lines, lines_of
from pipeline.prepare.reading.labelled_tables import Part, unused
from pipeline.prepare.reading.streams import num_lines, text_blocks, unpacked_name
from pipeline.prepare.reading.table_formats import NO_LINES, is_document
from pipeline.prepare.reading.table_sets import visible_files
from pipeline.prepare.reading.tables import Block, Columns, Named

MAPPING = "mapping.txt"
ROLES = {
    *("source", "src", "input", "in", "question", "questions", "query", "text"),
    *("target", "tgt", "trg", "output", "out", "answer", "answers", "label"),
}
"""Words in the names of files with the texts of pairs, line by line."""


def find_line_files(root: Path) -> dict[str, dict[str, Path]]:
    """Return the files of text that are columns of one table, line by line: for each split, a dict from the name of a column to its file.

    Such are `train.en` and `train.de`, `train/seq.in` and `train/label`, `src-train.txt` and `tgt-train.txt`, or `texts.txt` and `labels.txt`,
    which belong to train, as `corpus.en` does beside `dev.en`. A column is called like the words in the name of its file that are no split, and
    not in the names of all. Of the files of train, at least two with equal numbers of lines count, and of two such sets that with columns as in
    the other splits, or else the larger; of several in another split, the first that is complete. Files of one folder and one word for the split
    belong together. There are none if several folders have the same files of train.
    """
    origins: dict[str, dict[Any, dict[tuple[str, ...], Path]]] = defaultdict(lambda: defaultdict(dict))
    listed_files = [PurePosixPath(name) for name in visible_files(root) if not is_document(name)] if root.is_dir() else []
    names = [path for path in listed_files if path.name != MAPPING and not unpacked_name(path.name.lower()).endswith(NO_LINES)]
    named = [path for path in names if split_in(unpacked_name(str(path)))]
    has_train = any(split_in(unpacked_name(str(path))) == TRAIN for path in named)
    for path in named if has_train else names:
        plain = unpacked_name(path.name).removesuffix(".txt")
        column = tuple(word for word in words(plain) if word not in SPLIT_NAMES) or (plain,)
        origin = path.parent, *(word for word in words(plain) if word in SPLIT_NAMES)
        origins[split_in(unpacked_name(str(path))) or TRAIN][origin].setdefault(column, root / path)
    splits = {split: joined_columns(several.values()) for split, several in origins.items()}
    if len({*map(frozenset, origins[TRAIN].values())}) == 1 < min(len(origins[TRAIN]), *map(len, origins[TRAIN].values())):
        return {}  # such as a folder for each chapter
    sizes = {column: num_lines(path) for column, path in splits.get(TRAIN, {}).items()} if len(splits.get(TRAIN, {})) > 1 else {}
    counts = Counter(sizes.values())
    beside = {column for split, columns in splits.items() if split != TRAIN for column in columns}

    def fit(size: int) -> tuple[float, int]:
        of_size = [column for column, each in sizes.items() if each == size]
        return sum(any(column[-len(other) :] == other for column in of_size) for other in beside) / len(of_size), size

    best = max((size for size, count in counts.items() if count > 1 and size), key=fit, default=0)
    of_train = [column for column, size in sizes.items() if size == best]
    if not best:
        return {}
    fewest = min(map(len, of_train)) - 1
    common = next((at for at in range(fewest) if len({column[: at + 1] for column in of_train}) > 1), fewest)
    found = dict[str, dict[str, Path]]()
    for split in SPLITS:
        for column, file in splits.get(split, {}).items():
            name = next((of for of in of_train if column[-len(of[common:]) :] == of[common:]), None)
            if name is not None and (split != TRAIN or name == column):
                found.setdefault(split, {}).setdefault("_".join(name[common:]), file)
    return found


def joined_columns(several: Collection[Mapping[Any, Path]]) -> Mapping[Any, Path]:
    """Return the files of all origins, by column; of those of several origins with the same column, only the origin with the most columns."""
    every = {column: path for files in reversed([*several]) for column, path in files.items()}
    return every if len(every) == sum(map(len, several)) else max(several, key=len)


def are_parallel(found: Mapping[str, Mapping[str, Path]]) -> bool:
    """Return True if the columns of `find_line_files` may be pairs of texts: by their names, if these have one stem, such as `train.en` and
    `train.de`, or are of ROLES or languages, or because in each of several splits they have equal numbers of lines.
    """
    files = found.get(TRAIN, {})
    if len(found) > 1 and all(
        of_split.keys() == files.keys() and len({*map(num_lines, of_split.values())}) == 1 for of_split in found.values()
    ):
        return True
    stems = {path.with_name(unpacked_name(path.name)).with_suffix("") for path in files.values()}
    are_numbered = any(column.isdigit() for column in files)  # classes, as in `reviews.0` and `reviews.1`
    have_roles = all(set(column.split("_")) & ROLES for column in files) or all(map(is_language, files))
    return len(files) > 1 and not are_numbered and (len(stems) == 1 or have_roles)


def is_language(column: str) -> bool:
    """Return True for two letters, such as `en`."""
    return len(column) == 2 and column.isalpha()


def are_languages(files: Mapping[str, Path]) -> bool:
    """Return True if at least two of the columns `files` are called like languages, by two letters."""
    return sum(map(is_language, files)) > 1


def of_lines(found: Mapping[str, Mapping[str, Path]], columns: Columns, root: Path, encoding: str) -> tuple[list[Part], list[str]]:
    """Return the files whose lines belong together as parts, and sentences about those that are not used.

    A number that stands for a label gets its name from the file `mapping.txt` beside the files of train, if there is one, with a number and
    a name in each line. Raises Refusal if a file of train or valid is missing.
    """
    names, parts, notes = dict[str, str](), list[Part](), list[str]()
    first = next(iter(found[TRAIN].values())).with_name(MAPPING)
    if first.exists():
        for _, line in lines_of(text_blocks(first, encoding)):
            number, *name = line.split("\t") if "\t" in line else line.split(maxsplit=1)
            names |= {number: name[0]} if name else {}
    for split, files in found.items():
        lacking = [(key, column) for key, column in columns.named if column not in files]
        if lacking and split == TEST:
            notes.append(unused(next(iter(files.values())), lacking[0][1], columns.labels))
        elif lacking:
            key, column = lacking[0]
            problem = f"is {shown(column)}, but the files of {split} in {root} are {shown(', '.join(files))}"
            raise Refusal(f"{key}: {problem}: write one of these")
        else:
            parts.append(Part(files[str(columns.text)], split, partial(joined_lines, files, encoding, columns.labels[0], names)))
    return parts, notes


def joined_lines(files: Mapping[str, Path], encoding: str, label: Column, names: Mapping[str, str], columns: Named) -> Generator[Block]:
    """Yield the lines of several files as rows. Raises Refusal if one has more or fewer lines than another."""
    chosen = [str(column) for _, column in columns]
    for rows in json_rows.several(
        enumerate(zip_longest(*(lines_of(text_blocks(files[name], encoding, whole=True)) for name in chosen)), 1)
    ):
        if any(None in fields for _, fields in rows):
            one, other = (shown(files[name]) for name in (*chosen, *chosen)[:2])
            raise Refusal(f"source.root: {one}: has another number of lines than {other}: make them equal")
        every = {name: [fields[at][1] for _, fields in rows] for at, name in enumerate(chosen)}
        if label in every:
            every[str(label)] = [names.get(name.strip(), name) for name in every[str(label)]]
        yield Block(np.array([line for line, _ in rows]), {name: pa.array(values, pa.string()) for name, values in every.items()})


def of_classes(classes: Mapping[str, str], root: Path, encoding: str) -> list[Part]:
    """Return the files of text `classes`, whose values are the labels of their lines, as parts. Their columns have the numbers 1 and 2."""
    return [
        Part(root / name, split_in(posixpath.dirname(name)) or TRAIN, partial(lines_of_class, root / name, label, encoding))
        for name, label in classes.items()
    ]


def lines_of_class(path: Path, label: str, encoding: str, columns: Named) -> Generator[Block]:  # noqa: ARG001  # both columns, always
    """Yield the lines that are not blank of a file, as texts, with their label."""
    for rows in json_rows.several(filled_lines(text_blocks(path, encoding))):
        found = pa.array([text.strip() for _, text in rows], pa.string())
        yield Block(np.array([line for line, _ in rows]), {1: found, 2: pa.array([label] * len(rows), pa.string())})


def class_files(names: Sequence[str], pattern: str | None) -> Mapping[str, str]:
    """Return the class of each file among `names`, those in a folder, that holds the texts of one class, line by line; {} if there are none.

    The class is called like the file without its suffix, or like the suffix if that alone differs: `neg.txt`, or `reviews.neg`. All files
    must be directly in the folder or in folders of splits, such as `train`, some of them in train, and no tables or images, but for DOCUMENTS.
    `pattern` chooses some, in as many folders as it names.
    """
    matches = (name for name in names if pattern is None or (fnmatch(name, pattern) and name.count("/") == pattern.count("/")))
    chosen = [name for name in matches if not is_document(name)]
    are_of_splits = all(split_of_folder(part) for name in chosen for part in name.split("/")[:-1])
    has_train = any((split_in(posixpath.dirname(name)) or TRAIN) == TRAIN for name in chosen)
    if not are_of_splits or not has_train or any(unpacked_name(name.lower()).endswith(NO_LINES) for name in chosen):
        return {}
    plain = {name: PurePosixPath(unpacked_name(name)) for name in chosen}
    stems = {path.stem for path in plain.values()}
    found = {name: path.suffix[1:] if len(stems) == 1 else path.stem for name, path in plain.items()}
    is_unique = len({(path.parent, found[name]) for name, path in plain.items()}) == len(found)
    return found if is_unique and len(set(found.values())) > 1 else {}
