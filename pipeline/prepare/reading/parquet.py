"""Reads Parquet files: columns of texts and labels as rows of a table, and a column of encoded images as files."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown, size_bytes
from pipeline.prepare.reading.file_tree import Listing, Member, refuse_too_large

SUFFIX = ".parquet"
MOST_TEXT_BYTES = 2**30
"""Upper bound for the columns of a table, decompressed: they are held in memory."""
BATCH_ROWS = 16
"""Rows that are decompressed at once: a value of a small file may be large."""
BYTES = "bytes"
"""The field with the contents of the file, where a column holds structs, as in data sets of Hugging Face."""


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
    from pyarrow import types

    if types.is_struct(column):
        column = column.field(BYTES).type if column.get_field_index(BYTES) >= 0 else column
    return bool(types.is_binary(column) or types.is_large_binary(column))


def is_plain(column: Any) -> bool:
    """Return True if a column of this Arrow type holds single values, and no lists or structs."""
    from pyarrow import types

    return not types.is_nested(column)


def rows(path: Path, columns: Sequence[Any]) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield the number of each row, from 1, and its values in `columns`, by name.

    Raises Refusal if the file cannot be read, lacks a column, has nested values in one, or would need more than MOST_TEXT_BYTES.
    """
    with opened(path) as file:
        schema = file.schema_arrow
        for column in columns:
            refuse_missing(path, schema, column)
            if not is_plain(schema.field(column).type):
                raise Refusal(
                    f"source.root: {shown(path)}: the column {shown(column)} has nested values ({shown(schema.field(column).type, 60)}): "
                    "choose a column of texts or whole numbers, or store it as one"
                )
        number = held_bytes = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
            held_bytes += batch.nbytes
            if held_bytes > MOST_TEXT_BYTES:
                raise Refusal(f"source.root: {shown(path)}: its columns need more than {MOST_TEXT_BYTES} bytes of memory: divide the file")
            for row in batch.to_pylist():
                number += 1
                yield number, row


def refuse_missing(path: Path, schema: Any, column: str) -> None:
    """Raise Refusal if the Arrow `schema` does not have the column exactly once."""
    if schema.names.count(column) != 1:
        raise Refusal(
            f"source.root: {shown(path)}: has {schema.names.count(column)} columns called {shown(column)}: "
            f"write one of its columns, {shown(', '.join(schema.names))}"
        )


@dataclass(frozen=True)
class ParquetImages:
    """The encoded images of a column as files. The name of each is the number of its row, from 1."""

    path: Path
    column: str

    def listing(self) -> Listing:
        with opened(self.path) as file:
            refuse_missing(self.path, file.schema_arrow, self.column)
            if not is_image_column(found := file.schema_arrow.field(self.column).type):
                raise Refusal(
                    f"source.image_column: {shown(self.path)}: the column {shown(self.column)} has values of type {shown(found, 60)}, not the "
                    "bytes of image files: write another column, or name the folder of the images by `source.root` and this file by `source.table`"
                )
            return Listing([str(number) for number in range(1, file.metadata.num_rows + 1)])

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        """Yield the images with these names, in ascending order. The file is read once from its beginning, some rows at a time."""
        with closing(self.select(set(names))) as members:
            yield members

    def select(self, names: set[str]) -> Generator[Member]:
        number = 0
        with opened(self.path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[self.column]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    content = (value.get(BYTES) if isinstance(value, dict) else value) or b""
                    if str(number) in names:
                        refuse_too_large(self.path, str(number), len(content))
                        yield Member(str(number), content)
