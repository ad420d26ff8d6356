"""Reads the labelled rows of tables by columns, in constant memory: one pass for labels and splits, and a pass whenever their cells are needed."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.section import Column
from pipeline.core.spec import Targets
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import json_rows, parquet, tables
from pipeline.prepare.reading.cells import by_value, is_empty, mask, texts
from pipeline.prepare.reading.delimited import LONGEST_FIELD, lines_of
from pipeline.prepare.reading.find_tables import Tables, visible_files
from pipeline.prepare.reading.labels import Labels, NoLabel
from pipeline.prepare.reading.lines import is_document
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.split_names import SPLIT_NAMES, split_in, split_of_value, words
from pipeline.prepare.reading.streams import text_blocks
from pipeline.prepare.reading.tables import Block, Columns, FaultyRows, Named

LINES, MAPPING = ".txt", "mapping.txt"
MOST_EMPTY = 3
NO_LABEL = pa.array(["", "-1"])
"""Texts that stand for a label where none is known."""
FILL_OR_SKIP = "write a text, remove the row, or leave out all such rows with source.on_corrupt=skip"
Watch = Callable[[Block, NDArray[np.int8], NDArray[Any]], None]
"""Sees the rows of a block, their splits and the values of their labels, in the first pass."""


class Part(NamedTuple):
    """A table, or files that are one. `path` names it in messages, and `read` yields its rows with their cells in some columns."""

    path: Path
    split: str
    read: Callable[[Named], Generator[Block]]
    classes: Sequence[str] = ()
    """The class names that the file stores."""


class Samples(NamedTuple):
    """Some rows of one split. `positions` (n,) are those in the split, `lines` (n,) those in the file `path`."""

    path: Path
    split: str
    positions: NDArray[np.int64]
    lines: NDArray[np.int64]
    cells: Mapping[Column, Any]

    def place(self, at: int) -> str:
        return f"{shown(self.path)}:{self.lines[at]}"


@dataclass
class Labelled:
    """The rows of tables. `lines` (n,) and `splits` (n,), numbers in SPLITS, are in the order of reading; `ends` says where each part ends.

    `left_out` has the line numbers of the rows that are not used, by the number of the part. `task` and `targets` describe all others.
    """

    root: Path
    parts: list[Part] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    left_out: list[NDArray[np.int64]] = field(default_factory=list)
    lines: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    splits: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    notes: tuple[str, ...] = ()
    task: Targets = field(init=False)
    targets: dict[str, NDArray[Any]] = field(init=False)

    def path(self, row: int) -> Path:
        return self.parts[int(np.searchsorted(self.ends, row, side="right"))].path

    def place(self, row: int) -> str:
        return f"{shown(self.path(row))}:{self.lines[row]}"

    def rows_of(self, split: str) -> NDArray[np.int64]:
        """Return the numbers of the rows of a split, ascending."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def samples(self, columns: Sequence[Column]) -> Generator[Samples]:
        """Yield all rows with their cells in `columns`, read once more, in ascending position within a split."""
        positions, start = dict.fromkeys(SPLITS, 0), 0
        for part, left_out in zip(self.parts, self.left_out, strict=True):
            for block in part.read([("", column) for column in columns]):
                kept = selected(block, ~np.isin(block.lines, left_out)) if len(left_out) else block
                splits = self.splits[start : start + len(kept.lines)]
                start += len(kept.lines)
                for number in np.unique(splits):
                    found, split = selected(kept, splits == number), SPLITS[number]
                    yield Samples(part.path, split, positions[split] + np.arange(len(found.lines)), found.lines, found.cells)
                    positions[split] += len(found.lines)

    def keys(self) -> dict[str, Sequence[str]]:
        """Return where each row of each split was found: the file, relative to the root, and the line."""
        return {split: Keys(self, self.rows_of(split)) for split in self.targets}


class Keys(Sequence[str]):
    """The keys of some rows, made when they are asked for."""

    def __init__(self, labelled: Labelled, rows: NDArray[np.int64]) -> None:
        self.lines, self.rows = labelled.lines, rows
        self.parts = np.searchsorted(labelled.ends, np.arange(len(labelled.lines)), side="right").astype(np.int16)
        root = labelled.root
        self.names = [part.path.relative_to(root).as_posix() if part.path != root else root.name for part in labelled.parts]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        row = self.rows[at]
        return f"{self.names[self.parts[row]]}:{self.lines[row]}"


def selected(block: Block, rows: NDArray[np.bool_]) -> Block:
    """Return some rows of a block."""
    if rows.all():
        return block
    chosen = pa.array(rows)
    return Block(block.lines[rows], {column: cells.filter(chosen) for column, cells in block.cells.items()})


def of_tables(found: Tables, encoding: str, label: Column) -> list[Part]:
    """Return the tables of each split as parts. `label` is the column for which Parquet may store names of classes."""
    parts = []
    for split, paths in found.items():
        for path in paths:
            classes = parquet.class_names(path, label) if tables.suffix_of(path) == parquet.SUFFIX else ()
            parts.append(Part(path, split, partial(tables.blocks, path, encoding=encoding), classes))
    return parts


def read(parts: Sequence[Part], columns: Columns, labels: Labels, root: Path, *, skip: bool, watch: Watch | None = None) -> Labelled:
    """Return the rows of the parts with their targets. A column of splits takes precedence over the split of a part.

    A part of the test split that lacks a column, or has no labels, is left out. If `skip`, so are rows with an empty text or path, without a
    label, or with the names of the columns. Raises Refusal if a file cannot be parsed or has no rows, and MissingColumn if it lacks a column
    or has no labels. Raises Refusal with the lines if texts, labels or splits are invalid, or if the labels do not fit each other.
    """
    labelled, notes, empty = Labelled(root), list[str](), list[str]()
    every = list[tuple[NDArray[np.int64], NDArray[np.int8], NDArray[Any]]]()
    for part in parts:
        reading = PartReading(part, columns, labels, skip=skip)
        try:
            found = [*reading.rows(watch)]
        except MissingColumn as error:
            if part.split != TEST:
                error.table = part.path
                raise
            notes.append(unused(part.path, error.column, columns.labels))
            continue
        every += found
        labelled.parts.append(part)
        labelled.ends.append(sum(len(lines) for lines, _, _ in every))
        labelled.left_out.append(np.array(sorted(reading.left_out), np.int64))
        empty += [f"{shown(part.path)}:{line}" for line in labelled.left_out[-1]]
    if empty:
        what = "a text or a label" if columns.text is not None else "a label"
        notes.append(f"{counted(len(empty), 'row')} without {what} left out (source.on_corrupt): {listed(empty, MOST_EMPTY)}")
    if not any(len(lines) for lines, _, _ in every):
        raise Refusal(f"source.root: {root}: has no row that can be used: {'; '.join(notes) or 'add some'}")
    lines, splits, values = (np.concatenate(several) for several in zip(*every, strict=True))
    labelled.lines, labelled.splits = lines.astype(np.int32), splits
    task, targets, sentences = labels.of(values, labelled, parts[0].classes)
    labelled.task, labelled.notes = task, (*sentences, *notes)
    labelled.targets = {name: targets[splits == number].astype(task.dtype) for number, name in enumerate(SPLITS) if number in splits}
    return labelled


class PartReading:
    """The first pass over a part: finds the split and the label of each row. `left_out` are the lines of rows that are not used."""

    def __init__(self, part: Part, columns: Columns, labels: Labels, *, skip: bool) -> None:
        self.part, self.columns, self.labels, self.skip = part, columns, labels, skip
        self.left_out = list[int]()
        self.faulty = FaultyRows(part.path)

    def rows(self, watch: Watch | None) -> Generator[tuple[NDArray[np.int64], NDArray[np.int8], NDArray[Any]]]:
        """Yield the lines, the splits and the values of the labels of some rows at a time."""
        unlabelled = set(self.columns.labels)
        for block in self.part.read(self.columns.named):
            self.faulty.num_rows += len(block.lines)
            unlabelled -= {name for name in unlabelled if not mask(pc.is_in(pc.fill_null(texts(block.cells[name]), ""), NO_LABEL)).all()}
            kept = self.with_text(block)
            values, problems = self.labels.read([kept.cells[name] for name in self.columns.labels], self.part.classes)
            lines, usable = kept.lines, np.ones(len(kept.lines), bool)
            for rows, refusal in problems:
                if self.skip and isinstance(refusal, NoLabel):
                    self.left_out += lines[rows & usable].tolist()
                else:
                    self.faulty.add(lines[rows & usable], refusal)
                usable &= ~rows
            kept, values = selected(kept, usable), values[usable]
            splits = self.splits_of(kept)
            if watch and not self.faulty.lines:
                watch(kept, splits, values)
            yield kept.lines, splits, values
        if unlabelled and self.faulty.num_rows:
            label = next(name for name in self.columns.labels if name in unlabelled)
            problem = f"{self.faulty.place}: has no label in the column {shown(label)}: write the labels into it, or choose another column"
            raise MissingColumn(problem, label)
        self.faulty.refuse()

    def with_text(self, block: Block) -> Block:
        """Return the rows of a block whose text can be used."""
        column = self.columns.text
        if column is None:
            return block
        cells, remedy = texts(block.cells[column]), FILL_OR_SKIP.removeprefix("write a text, ")
        empty, are_names = is_empty(cells), np.zeros(len(block.lines), bool)
        if isinstance(column, str):
            are_names = np.logical_and.reduce([mask(pc.equal(texts(block.cells[name]), str(name))) for _, name in self.columns.named])
        if self.skip:
            self.left_out += block.lines[empty | are_names].tolist()
        else:
            self.faulty.add(block.lines[are_names], Refusal("has the names of the columns in place of values", remedy=remedy))
            self.faulty.add(block.lines[empty], Refusal("has an empty text", remedy=FILL_OR_SKIP))
        with_nul = mask(pc.match_substring(cells, "\0"))
        self.faulty.add(block.lines[with_nul], Refusal("has a NUL character, so it is no text", remedy="remove it"))
        too_long = mask(pc.greater(pc.utf8_length(cells), LONGEST_FIELD))
        self.faulty.add(
            block.lines[too_long], Refusal(f"has a text of more than {LONGEST_FIELD} characters", remedy="shorten or divide it")
        )
        return selected(block, ~(empty | are_names | with_nul | too_long))

    def splits_of(self, block: Block) -> NDArray[np.int8]:
        """Return the numbers of the splits of the rows, those of a column if it has them."""
        column = self.columns.split
        if column is None:
            return np.full(len(block.lines), SPLITS.index(self.part.split), np.int8)
        found = by_value(block.cells[column], lambda cell: split_of_value(cell, str(column)))
        for number, refusal in found.problems.items():
            self.faulty.add(block.lines[found.numbers == number], refusal)
        return np.array([SPLITS.index(split or TRAIN) for split in found.values], np.int8)[found.numbers]


def unused(path: Path, column: object, labels: Sequence[Column]) -> str:
    """Return the sentence about a table of test that lacks `column`. `labels` are the columns of the labels."""
    return f"{path} has no {f'labels ({column})' if column in labels else f'column {shown(column)}'} and is not used"


def find_line_files(root: Path, encoding: str) -> dict[str, dict[str, Path]]:
    """Return the files of text that are columns of one table, line by line: for each split, a dict from the name of a column to its file.

    Such are `train_text.txt` and `train_labels.txt`, whose columns are `text` and `labels`, or `texts.txt` and `labels.txt`, which belong to
    train. The result is empty if the files of train do not have equal numbers of lines, or are fewer than two.
    """
    found: dict[str, dict[str, Path]] = {}
    listed_files = map(PurePosixPath, visible_files(root)) if root.is_dir() else []
    names = [path for path in listed_files if path.suffix.lower() == LINES and path.name != MAPPING and not is_document(path)]
    named = [path for path in names if split_in(str(path.with_suffix("")))]
    for path in named or names:
        words_left = [word for word in words(path.stem) if word not in SPLIT_NAMES]
        of_split = found.setdefault(split_in(str(path.with_suffix(""))) or TRAIN, {})
        of_split["_".join(words_left) or path.stem] = root / path
    of_train = found.get(TRAIN, {})
    counts = {sum(1 for _ in lines_of(text_blocks(path, encoding))) for path in of_train.values()} if len(of_train) > 1 else set()
    return {split: found[split] for split in SPLITS if split in found} if len(counts) == 1 else {}


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
            raise Refusal(
                f"{key}: is {shown(column)}, but the files of {split} in {root} are {shown(', '.join(files))}: write one of these"
            )
        else:
            parts.append(Part(files[str(columns.text)], split, partial(joined_lines, files, encoding, columns.labels[0], names)))
    return parts, notes


def joined_lines(files: Mapping[str, Path], encoding: str, label: Column, names: Mapping[str, str], columns: Named) -> Generator[Block]:
    """Yield the lines of several files as rows. Raises Refusal if one has more or fewer lines than another."""
    chosen = [str(column) for _, column in columns]
    for rows in json_rows.several(enumerate(zip_longest(*(lines_of(text_blocks(files[name], encoding)) for name in chosen)), 1)):
        if any(None in fields for _, fields in rows):
            longer, other = (shown(files[name]) for name in (*chosen, *chosen)[:2])
            raise Refusal(f"source.root: {longer}: has another number of lines than {other}: make them equal")
        every = {name: [fields[at][1] for _, fields in rows] for at, name in enumerate(chosen)}
        if label in every:
            every[str(label)] = [names.get(name.strip(), name) for name in every[str(label)]]
        yield Block(np.array([line for line, _ in rows]), {name: pa.array(values, pa.string()) for name, values in every.items()})


def of_classes(classes: Mapping[Path, str], root: Path, encoding: str) -> list[Part]:
    """Return the files of text `classes`, whose values are the labels of their lines, as parts. Their columns have the numbers 1 and 2."""
    splits = {path: split_in(str(path.parent.relative_to(root))) or TRAIN for path in classes}
    return [Part(path, splits[path], partial(lines_of_class, path, label, encoding)) for path, label in classes.items()]


def lines_of_class(path: Path, label: str, encoding: str, columns: Named) -> Generator[Block]:  # noqa: ARG001  # both columns, always
    """Yield the lines that are not blank of a file, as texts, with their label."""
    filled: Iterator[tuple[int, Any]] = ((number, line.strip()) for number, line in lines_of(text_blocks(path, encoding)) if line.strip())
    for rows in json_rows.several(filled):
        found = pa.array([text for _, text in rows], pa.string())
        yield Block(np.array([line for line, _ in rows]), {1: found, 2: pa.array([label] * len(rows), pa.string())})
