"""Reads the inputs that a user names: files, tables, folders, archives, arrays and standard input. Of images, only names are held in memory."""

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import reason, shown
from pipeline.prepare.reading import archives, parquet, streams, table_formats, tables
from pipeline.prepare.reading.arrayfile import ArrayFile
from pipeline.prepare.reading.arrow_cells import Cells
from pipeline.prepare.reading.class_folders import visible_parts
from pipeline.prepare.reading.file_tree import MAX_MEMBER_BYTES, READ_ERRORS, Member, Tree
from pipeline.prepare.reading.listed_images import ListedImage, located
from pipeline.prepare.reading.parquet import MissingColumn, ParquetImages
from pipeline.prepare.reading.tables import Block, Named
from pipeline.prepare.reading.workers import on_threads
from pipeline.tools.predict.protocols import Chunk, FileReader, LineReader, Reader, Reading, RowReader

STANDARD_INPUT, OPTION, KEEP = "-", "--column", "--keep"
STREAM = Path("/dev/stdin")
"""Stands for standard input that is read as it arrives."""
LOOKED_AT_BYTES = 1 << 16
"""The bytes at the beginning of a file of lines by which its encoding is found, and refused what is a table."""
BLOCK_BYTES = 1 << 20
MOST_ROWS, MOST_TEXTS = 65_536, 1024
"""Rows of a table that are read at once: a text may take 65,536 tokens."""
MOST_NAMED = 8
NO_TABLE = f"is no table, which {KEEP} and a model of rows need: give a file whose name ends in {', '.join(table_formats.FORMATS)}"
NUMPY_START, ZIP_STARTS = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")
TAR_MARK = slice(257, 262)
"""The bytes of a tar archive that contain the word `ustar`."""


class TableColumn(NamedTuple):
    """The column of a table that has the inputs, unless a model reads whole rows.

    `trained` is the column that the model file records, and `given` that which the user names. Each is None if there is none. `encoding` is
    that of tables of text.
    """

    trained: Column | None
    given: Column | None
    encoding: str = streams.UTF8

    def chosen(self, path: Path) -> Column:
        """Return the column. Raises Refusal with the columns of the table if neither the model file nor the user names one."""
        column = self.given if self.given is not None else self.trained
        if column is None:
            names = [shown(name, 60) for name in tables.names(path, encoding=self.encoding)]
            remedy = f"add {OPTION} NAME with one of its columns, {listed(names, MOST_NAMED)}"
            raise Refusal(f"is a table, and the model file does not say from which column its inputs are: {remedy}")
        return column

    def blocks(self, path: Path, columns: Named) -> Iterator[Block]:
        """Yield the rows of a table with their cells in some columns, read as `prepare` reads them. The first is that of the inputs."""
        try:
            yield from tables.blocks(path, columns, encoding=self.encoding)
        except MissingColumn as refusal:
            if self.given is not None or refusal.column != self.trained:
                raise
            raise Refusal(f"{refusal} (the model reads the column {shown(self.trained, 60)}; {OPTION} reads another one)") from None


@dataclass(frozen=True)
class RawInputs:
    """Reads inputs for a model whose inputs `reader` reads.

    `column` is the column of the inputs in tables, and `workers` the number of threads that decode files. `keep` are columns of tables whose
    cells are kept beside the inputs. `on_unused` is called with the name of each file of a folder or archive that this model does not read.
    """

    reader: Reader
    column: TableColumn
    workers: int
    keep: Sequence[str] = ()
    on_unused: Callable[[str], None] = lambda _: None

    def read(self, names: Iterable[str | Path]) -> Iterator[Reading | Chunk]:
        """Yield every input that `names` name, as a stored sample or as a Refusal that says why it cannot be read; rows of tables in chunks.

        `names` are paths, or `-` for standard input. Neighbouring files are decoded side by side.
        """
        reads = {"lines": self.lines, "table": self.table, "array": self.array, "tree": self.tree}
        with ExitStack() as stack:
            found = (
                (str(name), stack.enter_context(standard_input(self.reader)) if name == STANDARD_INPUT else Path(name)) for name in names
            )
            for kind, group in groupby(found, key=lambda each: self.kind_of(each[1])):
                if kind == "file":
                    yield from self.files((name, Member(str(path), OnDisk())) for name, path in group)
                    continue
                for name, path in group:
                    yield from without_failure(name, path, partial(reads[kind], name, path))

    def suffix_of(self, path: Path) -> str:
        """Return the suffix of a table, or "". Its content counts if the model reads rows or the user names columns: other lines may be texts."""
        by_content = isinstance(self.reader, RowReader) or self.column.given is not None or bool(self.keep)
        return table_formats.suffix_of(path) if by_content and path != STREAM else table_formats.named_suffix(path)

    def kind_of(self, path: Path) -> str:
        """Return what is at `path`: a "tree" (a folder, a tar or zip archive), a "table", an "array" (.npy), a file of "lines", or another "file".

        `suffix_of` decides that a file is a table, and the first bytes what any other file is. If they cannot be read, reading the file later
        raises the error that says why.
        """
        plain, start = "lines" if isinstance(self.reader, LineReader) else "file", b""
        with suppress(OSError, ValueError):  # such as a name that is too long
            if path.is_dir():
                return "tree"
            if self.suffix_of(path):
                return "table"
            if path != STREAM and path.is_file() and os.access(path, os.R_OK):  # from a pipe or a device, reading might never end
                with path.open("rb") as file:
                    start = file.read(TAR_MARK.stop)
        if start.startswith(NUMPY_START):
            return "array"
        return "tree" if start.startswith((*ZIP_STARTS, *archives.DECOMPRESSORS)) or start[TAR_MARK] == b"ustar" else plain

    def files(self, named: Iterable[tuple[str, Member]]) -> Iterator[Reading]:
        """Yield the inputs of files that are no tables, in order. They are decoded on threads, except lines, of which a file may have many."""

        def readings(each: tuple[str, Member]) -> Iterator[Reading]:
            return without_failure(each[0], Path(each[0]), partial(self.of_file, *each))

        if isinstance(self.reader, LineReader):
            for each in named:
                yield from readings(each)
        else:
            for _, found in on_threads(lambda each: list(readings(each)), named, workers=self.workers):
                yield from found

    def of_file(self, name: str, file: Member) -> Iterator[Reading]:
        """Yield the inputs of one file that is no table. Raises Refusal if a table is needed."""
        if isinstance(self.reader, LineReader) and not self.keep:
            yield from self.reader.lines(name, io.BufferedReader(io.BytesIO(file.read()), LOOKED_AT_BYTES))
        elif isinstance(self.reader, FileReader) and not self.keep:
            yield name, self.reader.read(file)
        else:
            raise Refusal(NO_TABLE)

    def lines(self, name: str, path: Path) -> Iterator[Reading]:
        """Yield the input of each line of a file of any size, or of standard input."""
        assert isinstance(self.reader, LineReader)
        if self.keep:
            raise Refusal(NO_TABLE)
        if path == STREAM:
            yield from self.reader.lines(name, cast("io.BufferedReader[Any]", sys.stdin.buffer))
            return
        if not os.path.lexists(path):
            raise Refusal("there is no such file; a text itself is piped to the input `-`, or in Python passed as a str")
        untrusted.size_bytes(path)
        with io.BufferedReader(io.FileIO(path), LOOKED_AT_BYTES) as stream:
            yield from self.reader.lines(name, stream)

    def array(self, name: str, path: Path) -> Iterator[Reading]:
        """Yield the rows of an `.npy` file, which are stored samples, called `name[ROW]`."""
        if self.keep:
            raise Refusal(NO_TABLE)
        array = ArrayFile.open(name, lambda: path.open("rb"), untrusted.size_bytes(path))
        if not array.shape or not array.shape[0]:
            raise Refusal(f"has shape {array.shape}, so it has no rows")
        number, row_bytes = 0, array.dtype.itemsize * prod(array.shape[1:])
        for block in array.blocks(max(1, BLOCK_BYTES // max(1, row_bytes))):
            for row in block:
                yield f"{name}[{number}]", self.reader.row(row)
                number += 1

    def tree(self, name: str, path: Path) -> Iterator[Reading | Chunk]:
        """Yield the inputs in the files of a folder or archive, first those of tables. Hidden files are left out. Each name begins with `name`.

        Of a model of images, tables are unused, because the images that they list are in the folder, too, but Parquet files of a folder may
        hold images. Raises Refusal if the folder or archive cannot be listed, or if no file is left.
        """
        is_folder, has_tables = path.is_dir(), isinstance(self.reader, LineReader | RowReader)
        if not is_folder and path.suffix and isinstance(self.reader, LineReader) and not path.name.lower().endswith(archives.SUFFIXES):
            raise Refusal(f"is packed, but called neither a table nor one of {', '.join(archives.SUFFIXES)}: save it as .csv, or rename it")
        tree, prefix, in_tables, alone = archives.open_tree(path), f"{name.rstrip('/')}/", list[str](), list[str]()
        for each in filter(visible_parts, tree.listing().files):
            suffix = self.suffix_of(path / each) if is_folder else table_formats.named_suffix(Path(each))
            if suffix and (has_tables or (is_folder and suffix == parquet.SUFFIX)):
                in_tables.append(each)
            elif suffix or isinstance(self.reader, RowReader):
                self.on_unused(prefix + each)
            else:
                alone.append(each)
        if not in_tables and not alone:
            raise Refusal("has no files that this model reads")
        for each in in_tables:
            if not is_folder and table_formats.named_suffix(Path(each)) == parquet.SUFFIX:
                yield prefix + each, Refusal("is a Parquet file in an archive, which is read only from a folder: unpack the archive")
                continue
            yield from without_failure(prefix + each, path / each, partial(self.table, prefix + each, path / each))
        with tree.contents(alone) as members:
            yield from self.files((prefix + member.name, member) for member in members)

    def table(self, name: str, path: Path) -> Iterator[Reading | Chunk]:
        """Yield the rows of a table, or its fields in the column, called `name:LINE`, before those of a block the ones that cannot be read; of
        a model of images, the inputs in the files that the table lists or holds.
        """
        reader = self.reader
        blocks: Callable[[Named], Iterator[Block]] = partial(tables.blocks, path, encoding=self.column.encoding)
        if isinstance(reader, RowReader):
            columns, key, size = reader.columns, "", MOST_ROWS
        elif isinstance(reader, LineReader):
            columns, key, size, blocks = [self.column.chosen(path)], OPTION, MOST_TEXTS, partial(self.column.blocks, path)
        else:
            yield from self.listed_files(name, path)
            return
        keep: dict[str, Column] = {title: int(title) if isinstance(columns[0], int) and title.isdigit() else title for title in self.keep}
        types = stored_types(path) if keep else {}
        try:
            for block in parts(blocks([*((key, column) for column in columns), *((KEEP, column) for column in keep.values())]), size):
                places = [f"{name}:{line}" for line in block.lines.tolist()]
                samples, refused = reader.stored(places, [block.cells[column] for column in columns])
                kept = {title: as_stored(block.cells[column], types.get(title)) for title, column in keep.items()}
                if refused:
                    yield from ((places[at], refusal) for at, refusal in sorted(refused.items()))
                    usable = [at for at in range(len(places)) if at not in refused]
                    places, samples = [places[at] for at in usable], [samples[at] for at in usable]
                    kept = {title: cells.take(usable) for title, cells in kept.items()}
                yield Chunk(places, samples, kept)
        except MissingColumn as error:
            if isinstance(reader, LineReader) or error.column not in columns:
                raise
            problem = f"has no column {shown(error.column, 60)}, or several, but the model reads {shown(', '.join(map(str, columns)))}"
            raise Refusal(f"{problem}: write it once, with empty cells if it has no values") from None

    def listed_files(self, name: str, path: Path) -> Iterator[Reading]:
        """Yield the inputs in the files that a table lists in the column, by their paths, or holds, called `name:ROW`."""
        column = self.column.chosen(path)
        tree: Tree
        if table_formats.suffix_of(path) == parquet.SUFFIX and parquet.holds_images(path, str(column)):
            tree, prefix = ParquetImages(path, str(column)), f"{name}:"
            found = tree.listing().files
        else:
            tree, prefix = archives.Folder(path.parent), name.removesuffix(path.name)
            rows = tables.records(self.column.blocks(path, [(OPTION, column)]))
            found = located([ListedImage(path, line, str(cells[column]), "") for line, cells in rows], tree.listing().files, path.parent)
        with tree.contents(found) as members:
            yield from self.files((prefix + member.name, member) for member in members)


@contextmanager
def standard_input(reader: Reader) -> Generator[Path]:
    """Within this context, give the path of a temporary file with a copy of standard input. An archive is read twice, so it needs a file.

    If `reader` reads lines, nothing is copied, and the path is that of standard input itself. If it reads rows, the file has the suffix of
    JSON lines or CSV.
    """
    if isinstance(reader, LineReader):
        yield STREAM
        return
    with tempfile.TemporaryDirectory(prefix="predict-") as folder:
        path = Path(folder, "input")
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        if isinstance(reader, RowReader):
            with path.open("rb") as file:
                is_json = file.read(TAR_MARK.stop).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
            path = path.rename(path.with_suffix(".jsonl" if is_json else ".csv"))
        yield path


class OnDisk:
    """Reads a file by its path."""

    def read(self, path: str) -> bytes:
        return untrusted.read(Path(path), MAX_MEMBER_BYTES)


def parts(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield the rows of the blocks, at most `size` at a time."""
    for block in blocks:
        for start in range(0, len(block.lines), size):
            chosen = slice(start, start + size)
            yield Block(block.lines[chosen], {column: cells[chosen] for column, cells in block.cells.items()})


def stored_types(path: Path) -> dict[str, Any]:
    """Return the Arrow types of the columns of a Parquet file; none for other tables, which store texts."""
    if table_formats.suffix_of(path) != parquet.SUFFIX:
        return {}
    with parquet.opened(path) as file:
        return {field.name: field.type for field in file.schema_arrow}


def as_stored(cells: Cells, stored: Any) -> Cells:
    """Return cells that were read as texts in the type in which they are stored, if it is one of single values."""
    try:
        return cells if stored is None else cells.cast(stored)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return cells


def without_failure(name: str, path: Path, read: Callable[[], Iterable[Reading | Chunk]]) -> Iterator[Any]:
    """Yield what `read()` yields, and at its end, if it raised an exception, the reason why the rest of `path` cannot be read.

    The reason begins with neither the key `source.root` nor the path: the caller adds `name`.
    """
    try:
        yield from read()
    except Refusal as refusal:
        if isinstance(refusal, streams.NotDecoded):
            refusal = Refusal(refusal.advising("--encoding "))
        yield name, Refusal(refusal.within(str(path), shown(path)).replace(str(path), shown(name)))
    except (*READ_ERRORS, MemoryError) as error:
        yield name, Refusal(f"cannot be read: {getattr(error, 'strerror', None) or reason(error)}")
