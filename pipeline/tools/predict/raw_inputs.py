"""Reads the inputs that a user names: files, tables, folders, archives, arrays and standard input. Of images, only names are held in memory."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.section import Column
from pipeline.core.untrusted import reason
from pipeline.prepare.reading import archives, parquet, streams, tables
from pipeline.prepare.reading.arrayfile import ArrayFile
from pipeline.prepare.reading.cells import Cells
from pipeline.prepare.reading.class_folders import visible_parts
from pipeline.prepare.reading.file_tree import MAX_MEMBER_BYTES, READ_ERRORS, Member, Tree
from pipeline.prepare.reading.listed_images import ListedImage, located
from pipeline.prepare.reading.parquet import MissingColumn, ParquetImages
from pipeline.prepare.reading.tables import Block, Named
from pipeline.prepare.reading.workers import on_threads
from pipeline.tools.predict.protocols import OPTION, Chunk, FileReader, LineReader, Reader, Reading, RowReader, TableColumn

STANDARD_INPUT, KEEP = "-", "--keep"
NO_COLUMN = Refusal(f"is no table of rows or texts, so it has no column to keep: leave {KEEP} out")
STREAM = Path("/dev/stdin")
"""Stands for standard input that is read as it arrives."""
BLOCK_BYTES = 1 << 20
MOST_ROWS, MOST_TEXTS = 65_536, 1024
"""Rows of a table that are read at once: a text may take 65,536 tokens."""
NUMPY_START, ZIP_STARTS = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")
TAR_MARK = slice(257, 262)
"""The bytes of a tar archive that contain the word `ustar`."""
Advance = Callable[[int], None]


class Source(NamedTuple):
    """One part of the inputs: files that the user named one after the other, or the contents of a folder, an archive or an `.npy` file.

    `read(advance)` yields the inputs of this part. For the progress bar, it calls `advance(n)` whenever it has read n more files or array
    rows. `num_units` is the number of all files or rows.
    """

    num_units: int
    read: Callable[[Advance], Iterator[Reading | Chunk]]


class RawInputs:
    """All inputs that a user named, for a model whose inputs `reader` reads. `sources` read them.

    `column` is the column of the inputs in tables, and `workers` the number of threads that decode files. `keep` are columns of tables whose
    cells are kept beside the inputs. `problems` are the names that could not be opened, each with a Refusal. `unused` are the names of
    files that are no inputs.
    """

    def __init__(self, reader: Reader, column: TableColumn, workers: int, keep: Sequence[str] = ()) -> None:
        self.reader, self.column, self.workers, self.keep = reader, column, workers, keep
        self.sources: list[Source] = []
        self.problems: list[Reading] = []
        self.unused: list[str] = []

    @property
    def num_units(self) -> int:
        """Return the number of files and of array rows."""
        return sum(source.num_units for source in self.sources)

    def read(self, advance: Advance = lambda _: None) -> Iterator[Reading | Chunk]:
        """Yield every input with its name, as a stored sample or as a Refusal that says why it cannot be read; rows of tables in chunks."""
        yield from self.problems
        for source in self.sources:
            yield from source.read(advance)

    def add_files(self, named: Sequence[tuple[str, Path]]) -> None:
        """Add neighbouring files. They are one source, so that they are decoded side by side, unless they are read line by line."""
        if self.keep and not isinstance(self.reader, RowReader):
            self.problems += [(name, NO_COLUMN) for name, _ in named]
            return
        if isinstance(self.reader, LineReader):
            self.sources.extend(Source(1, partial(read_lines, name, path, self.reader)) for name, path in named)
            return
        members = [Member(name, Content(partial(untrusted.read, path, MAX_MEMBER_BYTES))) for name, path in named]
        self.sources.append(Source(len(members), partial(self.read_files, members)))

    def read_files(self, members: Iterable[Member], advance: Advance) -> Iterator[Reading | Chunk]:
        """Yield the inputs of all files, in order. They are decoded on threads, except lines: all those of a file would be held in memory."""

        def readings_of(member: Member) -> Iterator[Reading | Chunk]:
            if isinstance(reader := self.reader, RowReader):
                return without_failure(member.name, partial(self.chunks, member.name, partial(reader.blocks, member), reader.columns))
            assert isinstance(reader, FileReader)
            return iter([(member.name, NO_COLUMN)]) if self.keep else without_failure(member.name, partial(reader.read, member))

        read_all = (
            map(readings_of, members)
            if isinstance(self.reader, LineReader | RowReader)
            else (found for _, found in on_threads(lambda member: list(readings_of(member)), members, workers=self.workers))
        )
        for readings in read_all:
            yield from readings
            advance(1)

    def add_table(self, name: str, path: Path) -> None:
        self.sources.append(Source(1, partial(self.read_table, name, path)))

    def read_table(self, name: str, path: Path, advance: Advance) -> Iterator[Reading | Chunk]:
        """Yield the rows of a table, its fields in the column, or the files that they list or hold, as the reader needs."""

        def read() -> Iterator[Reading | Chunk]:
            if isinstance(self.reader, RowReader):
                blocks = partial(tables.blocks, path, encoding=self.column.encoding)
                yield from self.chunks(name, blocks, self.reader.columns, stored_types(path, self.keep))
            elif isinstance(self.reader, LineReader):
                yield from self.chunks(name, partial(self.column.blocks, path), [self.column.chosen(path)], stored_types(path, self.keep))
            else:
                yield from self.listed_files(name, path)

        yield from without_failure(name, read)
        advance(1)

    def chunks(
        self,
        name: str,
        blocks: Callable[[Named], Iterable[Block]],
        columns: Sequence[Column],
        types: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[Reading | Chunk]:
        """Yield the rows of a table, called `name:LINE`, and before those of a block the ones that cannot be read.

        `blocks` reads some columns of the table. `columns` are those of the inputs, and `types` the Arrow types of those to keep, if they are known.
        """
        assert isinstance(self.reader, LineReader | RowReader)
        key = "" if isinstance(self.reader, RowReader) else OPTION
        keep: dict[str, Column] = {
            column: int(column) if isinstance(columns[0], int) and column.isdigit() else column for column in self.keep
        }
        try:
            named = [*((key, column) for column in columns), *((KEEP, column) for column in keep.values())]
            for block in parts(blocks(named), MOST_ROWS if isinstance(self.reader, RowReader) else MOST_TEXTS):
                places = [f"{name}:{line}" for line in block.lines.tolist()]
                samples, refused = self.reader.stored(places, [block.cells[column] for column in columns])
                kept = {title: as_stored(block.cells[column], types.get(title)) for title, column in keep.items()}
                if refused:
                    yield from ((places[at], refusal) for at, refusal in sorted(refused.items()))
                    usable = [at for at in range(len(places)) if at not in refused]
                    places, samples = [places[at] for at in usable], [samples[at] for at in usable]
                    kept = {title: cells.take(usable) for title, cells in kept.items()}
                yield Chunk(places, samples, kept)
        except streams.NotDecoded as error:
            raise Refusal(error.advising("--encoding ")) from None
        except MissingColumn as error:
            if isinstance(self.reader, RowReader) and error.column in columns:
                raise self.reader.lacking(error.column) from None
            raise

    def listed_files(self, name: str, path: Path) -> Iterator[Reading | Chunk]:
        """Yield the inputs in the files that a table lists in the column, by their paths, or holds, called `name:ROW`."""
        tree: Tree
        if tables.suffix_of(path) == parquet.SUFFIX and parquet.holds_images(path, str(self.column.chosen(path))):
            tree, prefix = ParquetImages(path, str(self.column.chosen(path))), f"{name}:"
            found = tree.listing().files
        else:
            tree, prefix = archives.Folder(path.parent), name.removesuffix(path.name)
            listed = [ListedImage(path, line, str(value), "") for line, value in self.column.values(path)]
            found = located(listed, tree.listing().files, path.parent)
        with tree.contents(found) as members:
            yield from self.read_files(renamed(members, prefix), lambda _: None)

    def add_tree(self, name: str, path: Path) -> None:
        """Add the files of the folder or archive at `path`, without hidden files. The name of each will begin with `name`.

        A table that lists images is added to `unused`, because its images are in the folder, too; in an archive, Parquet files are not
        read. Raises Refusal if the folder or archive cannot be listed, or if it has no files.
        """
        reads_lines, reads_rows = isinstance(self.reader, LineReader), isinstance(self.reader, RowReader)
        lists_images = not (reads_lines or reads_rows)
        if reads_lines and not path.is_dir() and path.suffix and not path.name.lower().endswith(archives.SUFFIXES):
            raise Refusal(f"is packed, but called neither a table nor one of {', '.join(archives.SUFFIXES)}: save it as .csv, or rename it")
        tree = archives.open_tree(path)
        found = [each for each in tree.listing().files if visible_parts(each)]
        if not found:
            raise Refusal("has no files")
        prefix = f"{name.rstrip('/')}/"

        def read(files: list[str], advance: Advance) -> Iterator[Reading | Chunk]:
            try:
                with tree.contents(files) as members:
                    yield from self.read_files(renamed(members, prefix), advance)
            except Refusal as error:  # the archive is damaged from here on
                yield name, problem(error, path)

        if not path.is_dir():  # left out before the files are grouped: each source reads the archive from its start
            readable = () if lists_images else tables.TEXT
            packed = dict.fromkeys(each for each in found if (suffix := tables.suffix_of(Path(each))) and suffix not in readable)
            self.unused.extend(prefix + each for each in packed if lists_images)
            remedy = "is a Parquet file in an archive, which is read only from a folder: unpack the archive"
            self.problems.extend((prefix + each, Refusal(remedy)) for each in packed if not lists_images)
            found = [each for each in found if each not in packed]
        for suffix, group in groupby(found, key=lambda each: tables.suffix_of(Path(each))):
            files = list(group)
            if not suffix and not reads_rows:
                self.sources.append(Source(len(files), partial(read, files)))
            elif not suffix or (lists_images and suffix != parquet.SUFFIX):
                self.unused.extend(prefix + each for each in files)
            else:
                for each in files:
                    self.add_table(prefix + each, path / each)

    def add_array(self, name: str, path: Path) -> None:
        """Add an `.npy` file whose rows are stored samples. Raises Refusal if its rows do not fit the model."""
        if self.keep:
            raise NO_COLUMN
        array = ArrayFile.open(name, lambda: path.open("rb"), untrusted.size_bytes(path))
        if not array.shape or not array.shape[0]:
            raise Refusal(f"has shape {array.shape}, so it has no rows")
        row: Any = np.broadcast_to(np.zeros((), array.dtype), array.shape[1:])  # one element in memory, whatever the header says
        try:
            self.reader.row(row)
        except Refusal as refusal:
            raise Refusal(f"each row {refusal}") from None

        def read(advance: Advance) -> Iterator[Reading]:
            number = 0
            try:
                for block in array.blocks(max(1, BLOCK_BYTES // max(1, row.nbytes))):
                    for each in block:
                        yield f"{name}[{number}]", self.reader.row(each)
                        number += 1
                    advance(len(block))
            except Refusal as error:
                yield name, problem(error, path)

        self.sources.append(Source(array.shape[0], read))


@contextmanager
def opened(
    names: Iterable[str | Path], reader: Reader, column: TableColumn, *, workers: int, keep: Sequence[str] = ()
) -> Iterator[RawInputs]:
    """Within this context, give one RawInputs with the inputs that `names` name: paths, or `-` for standard input.

    The files in folders and archives are listed, but no file is decoded yet. A folder, archive or array that cannot be opened is added to
    `RawInputs.problems`.
    """
    inputs = RawInputs(reader, column, workers, keep)
    with ExitStack() as stack:
        located = [(str(name), stack.enter_context(standard_input(reader)) if name == STANDARD_INPUT else Path(name)) for name in names]
        for kind, group in groupby(located, key=lambda each: kind_of(each[1])):
            if kind == "file":
                inputs.add_files(list(group))
                continue
            add = {"table": inputs.add_table, "array": inputs.add_array}.get(kind, inputs.add_tree)
            for name, path in group:
                try:
                    add(name, path)
                except (Refusal, OSError) as error:
                    inputs.problems.append((name, problem(error, path)))
        yield inputs


@contextmanager
def standard_input(reader: Reader) -> Iterator[Path]:
    """Within this context, give the path of a temporary file with a copy of standard input. An archive is read twice, so it needs a file.

    If `reader` reads lines, nothing is copied, and the path is that of standard input itself.
    """
    if isinstance(reader, LineReader):
        yield STREAM
        return
    with tempfile.NamedTemporaryFile(prefix="predict-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        yield Path(file.name)


def kind_of(path: Path) -> str:
    """Return what is at `path`: "folder", "table", "archive" (tar or zip), "array" (.npy) or "file".

    The name decides that a file is a table, and the first bytes what any other file is.

    If the path cannot be opened, return "file": reading it later raises the error that says why.
    """
    try:
        if path == STREAM:
            return "file"
        if path.is_dir():
            return "folder"
        untrusted.size_bytes(path)
        if tables.suffix_of(path):
            return "table"
        with path.open("rb") as file:
            start = file.read(TAR_MARK.stop)
    except (OSError, ValueError):
        return "file"
    if start.startswith(NUMPY_START):
        return "array"
    packed = start.startswith((*ZIP_STARTS, *archives.DECOMPRESSORS)) or start[TAR_MARK] == b"ustar"
    return "archive" if packed else "file"


class Content(NamedTuple):
    """Reads one file. Its Member has the name that the user sees, such as `photos.zip/cat.png`."""

    load: Callable[[], bytes]

    def read(self, _: str) -> bytes:
        return self.load()


def renamed(members: Iterable[Member], prefix: str) -> Iterator[Member]:
    """Yield each file with `prefix` before its name."""
    return (Member(prefix + member.name, Content(member.read)) for member in members)


def parts(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield the rows of the blocks, at most `size` at a time."""
    for block in blocks:
        for start in range(0, len(block.lines), size):
            chosen = slice(start, start + size)
            yield Block(block.lines[chosen], {column: cells[chosen] for column, cells in block.cells.items()})


def stored_types(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """Return the Arrow types of some columns of a Parquet file; none for columns that are not there, and for other tables, which store texts."""
    if not columns or tables.suffix_of(path) != parquet.SUFFIX:
        return {}
    with parquet.opened(path) as file:
        return {field.name: field.type for field in file.schema_arrow if field.name in columns}


def as_stored(cells: Cells, stored: Any) -> Cells:
    """Return cells that were read as texts in the type in which they are stored, if it is one of single values."""
    try:
        return cells if stored is None else cells.cast(stored)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return cells


def read_lines(name: str, path: Path, reader: LineReader, advance: Advance) -> Iterator[Reading | Chunk]:
    """Yield the input of each line of a file of any size, or of standard input."""

    def lines() -> Iterator[Reading]:
        if path == STREAM:
            yield from reader.lines(name, sys.stdin.buffer)
            return
        if not os.path.lexists(path):
            raise Refusal("there is no such file; a text itself is piped to the input `-`, or in Python passed as a str")
        untrusted.size_bytes(path)  # raises OSError for a pipe or a device, from which reading might never end
        with path.open("rb") as stream:
            yield from reader.lines(name, stream)

    yield from without_failure(name, lines)
    advance(1)


def without_failure(name: str, read: Callable[[], Iterable[Reading | Chunk]]) -> Iterator[Reading | Chunk]:
    """Yield what `read()` yields, and at its end, if it raised an exception, the reason why the rest of the file `name` cannot be read."""
    try:
        yield from read()
    except Refusal as refusal:
        yield name, problem(refusal, Path(name))
    except OSError as error:
        yield name, Refusal(f"cannot be read: {error.strerror or reason(error)}")
    except (*READ_ERRORS, MemoryError) as error:
        yield name, Refusal(f"cannot be read: {reason(error)}")


def problem(error: Exception, path: Path) -> Refusal:
    """Return a Refusal whose message is only the reason why `path` cannot be read. The caller adds the name of the input.

    The message of `error` may begin with the key `source.root` and with the path. Both are removed. The functions that read a dataset add
    the key, but it has no meaning for a prediction.
    """
    if not isinstance(error, Refusal):
        return Refusal(f"cannot be read: {reason(error)}")
    return Refusal(error.within(str(path), untrusted.shown(path)))
