"""Reads an array from an `.npy` file or from a member of an `.npz` file: first the header, then the rows in blocks. Never uses pickle."""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.reading.archives import COMPRESSION_METHODS
from pipeline.prepare.reading.file_tree import READ_ERRORS, refuse_bomb

MAX_ARRAYS = 100
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class ArrayFile:
    """An array in an `.npy` file, or in a member of an `.npz` file. Its header has been checked; its rows are not read yet.

    `place` names the array in messages. `stream()` opens the file or member for reading, at the first byte of the header.
    """

    place: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: Callable[[], IO[bytes]]

    @classmethod
    def open(cls, place: str, stream: Callable[[], IO[bytes]], size_bytes: int) -> Self:
        """Check the header of a file and return its ArrayFile. `size_bytes` is the size of the file, including the header.

        `place` names the array in messages, and `stream()` opens the file. Raises Refusal if the file is not a complete array, needs
        pickle, has a structured dtype or is in Fortran order.
        """
        try:
            with stream() as file:
                shape, fortran_order, dtype = read_header(file)
                expected = file.tell() + dtype.itemsize * prod(shape)
        except Exception as error:  # numpy parses the header as a Python literal, which may raise any exception
            raise Refusal(f"{place}: is not an .npy array ({untrusted.reason(error)}): write it with numpy.save or numpy.savez") from None
        if dtype.hasobject or dtype.names:
            raise Refusal(f"{place}: has dtype {dtype}, which is not plain numbers or text: convert it before saving")
        if fortran_order:
            raise Refusal(f"{place}: is in Fortran order: save `numpy.ascontiguousarray(x)`")
        if size_bytes != expected:
            problem = f"has {size_bytes} bytes, but according to its header it has {expected}: it is truncated or damaged"
            raise Refusal(f"{place}: {problem}, so write it again")
        return cls(place, shape, dtype, stream)

    def blocks(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the rows of the array, `rows` at a time. Raises Refusal if they cannot be read."""
        row_bytes = self.dtype.itemsize * prod(self.shape[1:])
        try:
            with self.stream() as file:
                read_header(file)
                for start in range(0, self.shape[0], rows):
                    count = min(rows, self.shape[0] - start)
                    data = file.read(count * row_bytes)
                    yield np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])
        except READ_ERRORS as error:
            raise Refusal(f"{self.place}: cannot be read ({untrusted.reason(error)}): write it again") from None


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"its format version is {version}, not 1.0 or 2.0")
    shape, fortran_order, dtype = HEADERS[version](file)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"its shape {shape} has a negative extent")
    return shape, fortran_order and len(shape) > 1, dtype


def array_files(root: Path) -> dict[str, ArrayFile]:
    """Return a dict with the arrays of `root`, which is a folder of `.npy` files or an `.npz` file.

    A key is the name of an array without `.npy`, and with `-` for each `_`: the key of `train_inputs.npy` is `train-inputs`. Only the first
    MAX_ARRAYS arrays are read, in the order of the names in a folder, or of the members in an `.npz` file. Raises Refusal if two arrays
    have the same key, or if `root` or an array cannot be used.
    """
    arrays: dict[str, ArrayFile] = {}
    for name, place, stream, size_bytes in folder_entries(root) if root.is_dir() else archive_entries(root):
        key = name.removesuffix(".npy").replace("_", "-")
        if key in arrays:
            problem = f"has the same name as {arrays[key].place} (`_` counts as `-`)"
            raise Refusal(f"source.root: {place}: {problem}: remove or rename one of them")
        arrays[key] = ArrayFile.open(f"source.root: {place}", stream, size_bytes)
    return arrays


ArrayEntry = tuple[str, str, Callable[[], IO[bytes]], int]


def folder_entries(root: Path) -> Iterator[ArrayEntry]:
    for path in sorted(root.glob("*.npy"))[:MAX_ARRAYS]:
        try:
            size_bytes = untrusted.size_bytes(path)
        except OSError as error:
            raise Refusal(f"source.root: {shown(path)}: cannot be read ({untrusted.reason(error)}): write it again") from None
        yield path.name, shown(path), partial(open_file, path), size_bytes


def archive_entries(root: Path) -> Iterator[ArrayEntry]:
    try:
        packed_bytes = untrusted.size_bytes(root)
        with zipfile.ZipFile(root) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile may raise any exception on untrusted bytes
        problem = f"is neither a folder of .npy files nor an .npz file ({untrusted.reason(error)})"
        raise Refusal(f"source.root: {root}: {problem}: write it with numpy.savez") from None
    refuse_bomb(root, sum(member.file_size for member in members), packed_bytes)
    for member in members[:MAX_ARRAYS]:
        place = f"{root}: {shown(member.filename)}"
        if member.compress_type not in COMPRESSION_METHODS:
            problem = f"uses compression method {member.compress_type}, which is not supported"
            raise Refusal(f"source.root: {place}: {problem}: write the .npz file with numpy.savez")
        yield member.filename, place, partial(open_member, root, member.filename), member.file_size


def open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


def open_member(root: Path, name: str) -> IO[bytes]:
    with zipfile.ZipFile(root) as archive:  # closing the archive keeps the file open until the member is closed
        return archive.open(name)
