"""Writes samples to the rows of `.npy` files that were planned for them. Worker processes import this module, so it imports little."""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pipeline.core import files
from pipeline.core.raw_dataset import TRAIN

MOVED_BYTES = 16 * 2**20
HASHED_ROWS = 4096


class RowRange(NamedTuple):
    """Consecutive rows of a file: the number `start` of the first row, and their number `length`."""

    start: int
    length: int


@dataclass(frozen=True)
class RowFile:
    """An `.npy` file. `create` gives it its full size; then several threads and processes may write different rows at the same time.

    Until `finish`, the file is called `draft`. Each RowFile has its own draft: a worker process that outlives a killed `prepare` for a moment
    can thus not write into the files of the next one. The rows are written to the file and not to a memory map: on a full disk, a write
    raises OSError, but a memory map ends the process.

    If `shared`, several machines may write. NFS keeps pages of files in the memory of each machine, and could write back a whole page of
    which another machine has written a part. It does not if the file is open for writing only and each write is synchronous.
    """

    path: Path
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shared: bool = False
    token: str = field(default_factory=lambda: os.urandom(8).hex())

    @property
    def draft(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{self.token}.draft")

    @property
    def row_bytes(self) -> int:
        return prod(self.row_shape) * self.dtype.itemsize

    def header(self, rows: int) -> bytes:
        """Return the `.npy` header for an array with `rows` rows.

        The length of the header does not depend on `rows`: numpy pads the header so that the first dimension can grow.
        """
        header, shape = io.BytesIO(), (rows, *self.row_shape)
        npy.write_array_header_1_0(header, {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape})
        return header.getvalue()

    def offset(self, row: int) -> int:
        return len(self.header(0)) + row * self.row_bytes

    def create(self, rows: int) -> None:
        with files.naming(self.path, self.draft), self.draft.open("wb") as file:
            file.write(self.header(rows))
            file.truncate(self.offset(rows))

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write `rows` (n, *row_shape) from the row `start` on."""
        assert rows.shape[1:] == self.row_shape
        assert rows.dtype == self.dtype
        flags = os.O_WRONLY | (os.O_DSYNC if self.shared else 0)
        with files.naming(self.path, self.draft), open(os.open(self.draft, flags), "wb") as file:  # noqa: PTH123  # Path.open has no flags
            file.seek(self.offset(start))
            file.write(np.ascontiguousarray(rows).data)

    def close_gaps(self, ranges: Iterable[RowRange]) -> None:
        """Move the rows in `ranges` together, in ascending order, and cut off the rest of the file. `ranges` must not overlap."""
        end = 0
        with files.naming(self.path, self.draft), self.draft.open("r+b") as file:
            for start, length in sorted(ranges):
                if start != end:
                    move(file, self.offset(start), self.offset(end), size_bytes=length * self.row_bytes)
                end += length
            file.seek(0)
            file.write(self.header(end))
            file.truncate(self.offset(end))

    def finish(self, digest: files.ChunkedDigest) -> str:
        """Sync the file, give it its name, and return its digest. `digest` may have begun with the first rows."""
        with files.naming(self.path):
            files.sync(self.draft)
        value = digest.finish()
        self.draft.replace(self.path)
        return value


def move(file: io.BufferedRandom, source: int, target: int, *, size_bytes: int) -> None:
    """Copy `size_bytes` bytes of `file` from the offset `source` to the lower offset `target`. The two areas may overlap."""
    for done in range(0, size_bytes, MOVED_BYTES):
        file.seek(source + done)
        data = file.read(min(MOVED_BYTES, size_bytes - done))
        file.seek(target + done)
        file.write(data)


class Stored(NamedTuple):
    """Says in which rows some samples were stored, by file. `positions` are their positions in `split`, a split of the source.

    `digests` has what `row_digests` returned for these rows, by file. `summaries` is what `Statistics.summarize` returned for the samples of train.
    """

    split: str
    positions: NDArray[np.int64]
    ranges: dict[str, RowRange]
    digests: dict[str, NDArray[np.uint64]]
    summaries: list[Any]


@dataclass(frozen=True)
class Rows:
    """The rows for some samples of `split`, a split of the source.

    `positions` (n,) are the indices of the samples in this split. `names` (n,) are the splits to which they are assigned. For each of these
    splits, `files` has its file, and `starts` the first of the consecutive rows for these samples.
    """

    split: str
    positions: NDArray[np.int64]
    names: NDArray[np.str_]
    starts: Mapping[str, int]
    files: Mapping[str, RowFile]
    summarize: Callable[[NDArray[Any]], Any]

    def store(self, inputs: NDArray[Any], kept: NDArray[np.bool_]) -> Stored:
        """Write the inputs to their files. `kept` (n,) is False for the corrupt samples, which `inputs` does not contain.

        The samples that are kept take the first rows. The rows that remain free at the end are closed later by `RowFile.close_gaps`.
        """
        names = self.names[kept]
        stored = Stored(self.split, self.positions[kept], {}, {}, [])
        for name, start in self.starts.items():
            chosen = names == name
            rows = inputs if chosen.all() else inputs[chosen]  # do not copy inputs that all go to one split
            self.files[name].write(start, rows)
            stored.ranges[name] = RowRange(start, len(rows))
            stored.digests[name] = row_digests(rows)
            if name == TRAIN and len(rows):
                stored.summaries.append(self.summarize(rows))
        return stored


def row_digests(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return 64 bits of the SHA-256 of each row. They are few enough to keep those of all samples in memory, to find equal samples."""
    return digests(row_contents(rows))


def row_contents(rows: NDArray[Any]) -> list[bytes]:
    """Return the bytes of each row, in the order of its numbers."""
    contents = np.ascontiguousarray(rows)
    return contents.reshape(len(rows), -1).view(f"V{contents[0].nbytes}").ravel().tolist() if len(rows) else []


def digests(contents: Iterable[bytes], prefix: bytes = b"") -> NDArray[np.uint64]:
    """Return the first 64 bits of the SHA-256 of `prefix` followed by each of `contents`, as big-endian numbers."""
    found, remaining = [np.empty(0, np.uint64)], iter(contents)
    while several := b"".join([hashlib.sha256(prefix + content).digest() for content in islice(remaining, HASHED_ROWS)]):
        found.append(np.frombuffer(several, ">u8")[:: hashlib.sha256().digest_size // 8].astype(np.uint64))
    return np.concatenate(found)
