"""Reads Parquet files: columns of texts and labels as rows of a table, and a column of encoded images as files."""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown, size_bytes
from pipeline.prepare.reading.file_tree import Listing, Member, refuse_too_large
from pipeline.prepare.reading.streams import LOOK

SUFFIX = ".parquet"
BATCH_ROWS, TABLE_ROWS = 16, 1024
"""Rows that are decompressed at once, of a column of images and of a table: a value of a small file may be large."""
LOOKED_AT_ROWS = 10_000
CHUNK_ROWS, CHUNK_BYTES = 65_536, 4 * 2**20
BYTES = "bytes"
"""The field with the contents of the file, where a column holds structs, as in data sets of Hugging Face."""
PATH = "path"
"""The field with its path, which is read if a file is not contained."""


class MissingColumn(Refusal):
    """Raised for a table that does not have `column`, or has no label in it. `table` is its path, where it is known."""

    table: Path | None = None

    def __init__(self, message: str, column: object) -> None:
        super().__init__(message)
        self.column = column


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a Parquet file as `pyarrow.parquet.ParquetFile`. Raises Refusal if it cannot be read."""
    import pyarrow.parquet as pq  # late: it takes 0.2 s, and most data are no Parquet

    try:
        size_bytes(path)
        with pq.ParquetFile(path) as file:
            yield file
    except Refusal:
        raise
    except Exception as error:  # pyarrow may raise any exception on untrusted bytes
        raise Refusal(f"source.root: {shown(path)}: cannot be read as Parquet ({reason(error)}): create it again") from None


def is_image_column(column: Any) -> bool:
    """Return True if a column of this Arrow type holds encoded images: bytes, or structs with a field `bytes`."""
    if types.is_struct(column):
        column = column.field(BYTES).type if column.get_field_index(BYTES) >= 0 else column
    return bool(types.is_binary(column) or types.is_large_binary(column))


def is_plain(column: Any) -> bool:
    """Return True if a column of this Arrow type holds single values, lists of these, or structs with a path, and no other structs."""
    if is_list(column):
        return not types.is_nested(column.value_type)
    return not types.is_nested(column) or (types.is_struct(column) and column.get_field_index(PATH) >= 0)


def is_list(column: Any) -> bool:
    return bool(types.is_list(column) or types.is_large_list(column))


def holds_images(path: Path, column: str) -> bool:
    """Return True if a column holds encoded images, at least in its first row with a value."""
    with opened(path) as file:
        refuse_missing(path, file.schema_arrow, column)
        if not is_image_column(file.schema_arrow.field(column).type):
            return False
        for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
            for value in batch.column(0).to_pylist():
                if value.get(BYTES) if isinstance(value, dict) else value:
                    return True
                if isinstance(value, dict) and value.get(PATH):
                    return False
    return False


def plain_columns(path: Path) -> list[str]:
    """Return the names of the columns that hold single values, and neither images nor lists. Names that occur twice are left out."""
    with opened(path) as file:
        schema = file.schema_arrow
    once = [name for name in schema.names if schema.names.count(name) == 1]
    return [name for name in once if is_plain(schema.field(name).type) and not is_image_column(schema.field(name).type)]


def class_names(path: Path, column: Any) -> list[str]:
    """Return the names of the classes whose numbers are in `column`, as the library `datasets` stores them, or [] if there are none."""
    with opened(path) as file:
        stored = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        feature = json.loads(stored)["info"]["features"][column]
        names = feature.get("feature", feature)["names"]  # of a list, or of single values
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def chunks(path: Path, columns: Sequence[Any]) -> Generator[tuple[int, dict[Any, Any]]]:
    """Yield the number of the first of some consecutive rows, from 1, and their cells as Arrow arrays, by column: see `as_cells`.

    Raises Refusal if the file cannot be read, lacks a column, or has nested values or strings that are not UTF-8 in one.
    """
    with opened(path) as file:
        schema = file.schema_arrow
        for column in columns:
            refuse_missing(path, schema, column)
            if not is_plain(schema.field(column).type):
                problem = f"{shown(path)}: the column {shown(column)} has nested values ({shown(schema.field(column).type, 60)})"
                raise Refusal(f"source.root: {problem}: choose a column of texts, whole numbers or lists of these, or store it as one")
        number, held, held_bytes = 1, list[Any](), 0
        for batch in chain(batches(path, file, list(columns)), [None]):
            if held and (batch is None or held_bytes > CHUNK_BYTES or sum(map(len, held)) >= CHUNK_ROWS):
                table = pa.Table.from_batches(held)
                cells = {name: as_cells(pa.concat_arrays(table[name].chunks)) for name in columns}
                for name, values in cells.items():
                    refuse_undecoded(path, name, number, values)
                yield number, cells
                number, held, held_bytes = number + len(table), [], 0
            if batch is not None and len(batch):
                held.append(batch)
                held_bytes += batch.nbytes


def refuse_undecoded(path: Path, column: str, first: int, values: Any) -> None:
    """Raise Refusal if a string of `values`, those of a column from the row `first`, is not UTF-8, which writers do not check."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        for row, cell in enumerate(values.cast(pa.binary()).to_pylist(), first):
            try:
                (cell or b"").decode()
            except UnicodeDecodeError:
                problem = f"{shown(path)}:{row}: has {shown(cell, 30)} in the column {shown(column)}, which is not UTF-8"
                raise Refusal(f"source.root: {problem}: store the column anew, as UTF-8") from None


def batches(path: Path, file: Any, columns: list[Any]) -> Generator[Any]:
    """Yield some rows at a time; within `streams.looking`, only the first LOOKED_AT_ROWS of the first, the middle and the last row group."""
    if not (look := LOOK.get()):
        yield from file.iter_batches(TABLE_ROWS, columns=columns)
        return
    rows = 0
    for group in sorted({0, file.num_row_groups // 2, file.num_row_groups - 1} & {*range(file.num_row_groups)}):
        most = rows + LOOKED_AT_ROWS
        for batch in file.iter_batches(TABLE_ROWS, row_groups=[group], columns=columns):
            yield batch
            rows += len(batch)
            if rows >= most:
                break
    look.parts[path] = rows, file.metadata.num_rows


def as_cells(values: Any) -> Any:
    """Return the values of a column as strings: lists as JSON, structs by their path, times without zeros for a fraction.

    Floating-point numbers become float64.
    """
    kind = values.type
    if types.is_dictionary(kind):
        return as_cells(values.dictionary_decode())
    if types.is_floating(kind):
        return values.cast(pa.float64())
    if types.is_struct(kind):
        return as_cells(values.field(PATH))
    if types.is_nested(kind):
        return pa.array([None if value is None else json.dumps(value, default=str, ensure_ascii=False) for value in values.to_pylist()])
    try:
        written = values.cast(pa.string())
        return (
            pc.replace_substring_regex(written, r"\.0+(Z|[+-]\d{4})?$", r"\1")
            if types.is_timestamp(kind) or types.is_time(kind)
            else written
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as durations, or bytes that are no text
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())


def refuse_missing(path: Path, schema: Any, column: str) -> None:
    """Raise MissingColumn if the Arrow `schema` does not have the column exactly once."""
    if schema.names.count(column) != 1:
        raise MissingColumn(
            f"source.root: {shown(path)}: has {schema.names.count(column)} columns called {shown(column)}: "
            f"write one of its columns, {shown(', '.join(schema.names))}",
            column,
        )


@dataclass(frozen=True)
class ParquetImages:
    """The encoded images of a column as files. The name of each is the number of its row, from 1.

    `path` is the file, or a folder with `files`. The name of an image then begins with its file, such as `data/train.parquet:1`.
    """

    path: Path
    column: str
    files: tuple[str, ...] = ("",)

    def name(self, file: str, number: int) -> str:
        return f"{file}:{number}" if file else str(number)

    def listing(self) -> Listing:
        found = Listing()
        for name in self.files:
            path = self.path / name
            with opened(path) as file:
                refuse_missing(path, file.schema_arrow, self.column)
                if not is_image_column(kind := file.schema_arrow.field(self.column).type):
                    raise Refusal(
                        f"source.image_column: {shown(path)}: the column {shown(self.column)} has values of type {shown(kind, 60)}, not the "
                        "bytes of image files: write another column, or name the folder of the images by `source.root` and this file by `source.table`"
                    )
                found.files += [self.name(name, number) for number in range(1, file.metadata.num_rows + 1)]
        return found

    def contents(self, names: Sequence[str]) -> AbstractContextManager[Iterator[Member]]:
        """Yield the images with these names, in the order of the listing. Each file is read once from its beginning, some rows at a time."""
        return closing(self.select(set(names)))

    def select(self, names: set[str]) -> Generator[Member]:
        for name in self.files:
            number = 0
            with opened(self.path / name) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=[self.column]):
                    for value in batch.column(0).to_pylist():
                        number += 1
                        content = (value.get(BYTES) if isinstance(value, dict) else value) or b""
                        if (member := self.name(name, number)) in names:
                            refuse_too_large(self.path / name, str(number), len(content))
                            yield Member(member, content)
