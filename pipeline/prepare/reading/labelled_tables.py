"""Reads the labelled rows of tables by columns, in constant memory: one pass for labels and splits, and a pass whenever their cells are needed."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN
from pipeline.core.refusal import Refusal, Unavailable, counted, listed
from pipeline.core.section import Column
from pipeline.core.spec import Targets
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import parquet, table_formats, tables
from pipeline.prepare.reading.arrow_cells import by_value, is_empty, is_missing, mask, texts, without
from pipeline.prepare.reading.class_folders import split_of_value
from pipeline.prepare.reading.delimited import LONGEST_FIELD
from pipeline.prepare.reading.labels import Labels, NoLabel
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.table_sets import Tables
from pipeline.prepare.reading.tables import Block, Columns, FaultyRows, Named

MOST_EMPTY = 3
NO_LABEL = "-1"
"""A text that stands for a label where none is known, beside those that mean no value."""
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

    def texts(self, column: Column) -> list[str]:
        """Return the cells of a column as texts."""
        found: list[str] = texts(self.cells[column]).to_pylist()
        return found

    def places(self, rows: slice) -> list[str]:
        """Return the name of the file and the line of each of some rows."""
        file = shown(self.path)
        return [f"{file}:{line}" for line in self.lines[rows].tolist()]


@dataclass
class Labelled:
    """The rows of tables. `lines` (n,) and `splits` (n,), numbers in SPLITS, are in the order of reading; `ends` says where each part ends.

    `left_out` has the numbers, from 0, of the rows of each part that are not used. `task` and `targets` describe all others.
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
        for part, left_out, end in zip(self.parts, self.left_out, self.ends, strict=True):
            seen = 0
            for block in part.read([("", column) for column in columns]):
                kept = selected(block, ~np.isin(np.arange(seen, seen + len(block.lines)), left_out)) if len(left_out) else block
                seen += len(block.lines)
                splits = self.splits[start : start + len(kept.lines)]
                start += len(kept.lines)
                for number in np.unique(splits):
                    found, split = selected(kept, splits == number), SPLITS[number]
                    yield Samples(part.path, split, positions[split] + np.arange(len(found.lines)), found.lines, found.cells)
                    positions[split] += len(found.lines)
            if start != end:
                raise Unavailable(f"source.root: {shown(part.path)}: was changed while it was read: run the stage again")

    def checked_samples(self, columns: Sequence[Column]) -> Generator[tuple[Samples, FaultyRows]]:
        """Yield like `samples`, and with each the faulty rows of its file, to which the caller adds. At the end, raise Refusal if there are any."""
        of_files = dict[Path, FaultyRows]()
        for samples in self.samples(columns):
            faulty = of_files.setdefault(samples.path, FaultyRows(samples.path))
            faulty.num_rows += len(samples.lines)
            yield samples, faulty
        for faulty in of_files.values():
            faulty.refuse()

    def groups(self, column: Column) -> Generator[bytes]:
        """Yield the cell of each row of train in the column of the groups. Raises Refusal, which lists the lines, if a row has none."""
        for samples, faulty in self.checked_samples([column]):
            missing = is_missing(samples.cells[column])
            problem = f"has no value in the column {shown(column)} (source.group_column)"
            faulty.add(samples.lines[missing], Refusal(problem, remedy="write one"))
            if samples.split == TRAIN:
                yield from (str(cell).strip().encode("utf-8", "surrogatepass") for cell in samples.texts(column))

    def keys(self) -> dict[str, Sequence[str]]:
        """Return where each row of each split was found: the file, relative to the root, and the line."""
        return {split: Keys(self, self.rows_of(split)) for split in self.targets}


class Keys(Sequence[str]):
    """The keys of some rows, made when they are asked for."""

    def __init__(self, labelled: Labelled, rows: NDArray[np.int64]) -> None:
        self.lines, self.rows = labelled.lines, rows
        self.parts = np.searchsorted(labelled.ends, np.arange(len(labelled.lines)), side="right").astype(np.int32)
        root = labelled.root
        self.names = [part.path.relative_to(root).as_posix() if part.path != root else root.name for part in labelled.parts]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        rows = np.atleast_1d(self.rows[at])
        found = [f"{self.names[part]}:{line}" for part, line in zip(self.parts[rows].tolist(), self.lines[rows].tolist(), strict=True)]
        return found if isinstance(at, slice) else found[0]


def selected(block: Block, rows: NDArray[np.bool_]) -> Block:
    """Return some rows of a block."""
    if rows.all():
        return block
    chosen = pa.array(rows)
    return Block(block.lines[rows], {column: cells.filter(chosen) for column, cells in block.cells.items()})


def of_tables(found: Tables, encoding: str, label: Column, missing: Sequence[str] = ()) -> list[Part]:
    """Return the tables of each split as parts. `label` is the column for which Parquet may store names of classes. `missing` are texts without a value."""

    def blocks(path: Path, columns: Named) -> Generator[Block]:
        for block in tables.blocks(path, columns, encoding=encoding):
            yield block._replace(cells={column: without(cells, missing) for column, cells in block.cells.items()})

    parts = []
    for split, paths in found.items():
        for path in paths:
            classes = parquet.class_names(path, label) if table_formats.suffix_of(path) == parquet.SUFFIX else ()
            parts.append(Part(path, split, partial(blocks, path), classes))
    return parts


def read(parts: Sequence[Part], columns: Columns, labels: Labels, root: Path, *, skip: bool, watch: Watch | None = None) -> Labelled:
    """Return the rows of the parts with their targets. A column of splits takes precedence over the split of a part.

    A part of the test split that lacks a column, or has no labels, is left out. If `skip`, so are rows with an empty text or path, without a
    label, or with the names of the columns. Raises Refusal if a file cannot be parsed or has no rows, and MissingColumn if it lacks a column
    or has no labels. Raises Refusal with the lines if texts, labels or splits are invalid, or if the labels do not fit each other.
    """
    labelled, notes, num_empty, empty = Labelled(root), list[str](), 0, list[str]()
    every = list[tuple[NDArray[np.int32], NDArray[np.int8], NDArray[Any]]]()
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
        labelled.left_out.append(np.concatenate(reading.left_out))
        left_lines = np.concatenate(reading.left_lines)
        num_empty += len(left_lines)
        empty += [f"{shown(part.path)}:{line}" for line in left_lines[:MOST_EMPTY]]
    if empty:
        more = f" and {num_empty - len(empty[:MOST_EMPTY])} more" if num_empty > len(empty[:MOST_EMPTY]) else ""
        what = "without a text or a label" if columns.text is not None else "without a label"
        left_out = f"{counted(num_empty, 'row')} {what} left out (source.on_corrupt)"
        notes.append(f"{left_out}: {listed(empty[:MOST_EMPTY], MOST_EMPTY)}{more}")
    if not any(len(lines) for lines, _, _ in every):
        raise Refusal(f"source.root: {root}: has no row that can be used: {'; '.join(notes) or 'add some'}")
    lines, splits, values = (np.concatenate(several) for several in zip(*every, strict=True))
    every.clear()
    labelled.lines, labelled.splits = lines, splits
    task, targets, sentences = labels.of(values, labelled, parts[0].classes)
    labelled.task, labelled.notes = task, (*sentences, *notes)
    labelled.targets = {name: targets[splits == number].astype(task.dtype) for number, name in enumerate(SPLITS) if number in splits}
    return labelled


class PartReading:
    """The first pass over a part: finds the split and the label of each row.

    `left_out` has the numbers of the rows that are not used, counted from 0 in the part, and `left_lines` their lines.
    """

    def __init__(self, part: Part, columns: Columns, labels: Labels, *, skip: bool) -> None:
        self.part, self.columns, self.labels, self.skip = part, columns, labels, skip
        self.left_out, self.left_lines = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        self.faulty = FaultyRows(part.path)

    def rows(self, watch: Watch | None) -> Generator[tuple[NDArray[np.int32], NDArray[np.int8], NDArray[Any]]]:
        """Yield the lines, the splits and the values of the labels of some rows at a time."""
        unlabelled = set(self.columns.labels)
        for block in self.part.read(self.columns.named):
            for name in [*unlabelled]:
                cells = block.cells[name]
                if not (is_missing(cells) | mask(pc.equal(texts(cells), NO_LABEL))).all():
                    unlabelled.remove(name)
            left_out, faulty = self.without_text(block)
            texts_used = np.flatnonzero(~(left_out | faulty))
            kept = selected(block, ~(left_out | faulty))
            values, problems = self.labels.read([kept.cells[name] for name in self.columns.labels], self.part.classes)
            usable = np.ones(len(kept.lines), bool)
            for several, refusal in problems:
                rows = several[usable[several]]
                usable[rows] = False
                if self.skip and isinstance(refusal, NoLabel):
                    left_out[texts_used[rows]] = True
                else:
                    self.faulty.add(kept.lines[rows], refusal)
            self.left_out.append(self.faulty.num_rows + np.flatnonzero(left_out))
            self.left_lines.append(block.lines[left_out])
            self.faulty.num_rows += len(block.lines)
            kept, values = selected(kept, usable), values[usable]
            splits = self.splits_of(kept)
            if watch and not self.faulty.lines:
                watch(kept, splits, values)
            yield kept.lines.astype(np.int32), splits, values
        if unlabelled and self.faulty.num_rows:
            label = next(name for name in self.columns.labels if name in unlabelled)
            problem = f"{self.faulty.place}: has no label in the column {shown(label)}: write the labels into it, or choose another column"
            raise MissingColumn(problem, label)
        self.faulty.refuse()

    def with_names(self, block: Block) -> NDArray[np.bool_]:
        """Return which rows of a block have the names of the columns, as a text or a label has a row."""
        if not isinstance(self.columns.text, str):
            return np.zeros(len(block.lines), bool)
        found = [mask(pc.equal(texts(block.cells[name]), str(name))) for _, name in self.columns.named]
        return np.asarray(np.logical_and.reduce(found), bool)

    def without_text(self, block: Block) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows of a block are left out, because they have no text, or the names of the columns, and which others have a text that
        cannot be used. If no rows are to be skipped, the first are among the second.
        """
        left_out, faulty = np.zeros((2, len(block.lines)), bool)
        if self.columns.text is None:
            return left_out, faulty
        cells, too_long = texts(block.cells[self.columns.text]), f"has a text of more than {LONGEST_FIELD} characters"
        empty, with_names = is_empty(cells), self.with_names(block)
        questions = [
            (mask(pc.match_substring(cells, "\0")), Refusal("has a NUL character, so it is no text", remedy="remove it")),
            (mask(pc.greater(pc.utf8_length(cells), LONGEST_FIELD)), Refusal(too_long, remedy="shorten or divide it")),
        ]
        if self.skip:
            left_out = empty | with_names
        else:
            names = Refusal("has the names of the columns in place of values", remedy=FILL_OR_SKIP.removeprefix("write a text, "))
            questions = [(with_names, names), (empty, Refusal("has an empty text", remedy=FILL_OR_SKIP)), *questions]
        for rows, refusal in questions:
            self.faulty.add(block.lines[rows & ~faulty], refusal)
            faulty |= rows
        return left_out, faulty & ~left_out

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
