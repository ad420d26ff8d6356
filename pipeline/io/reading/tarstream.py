"""Reads a tar archive as one stream, with bounded headers and bounded decompression. Refuses data after the end of the archive."""

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline.io.reading.file_tree import refuse_bomb

BLOCK_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 18
MAX_PADDING_BYTES = 1 << 26


class BoundedHeaders:
    """Wraps a file and limits how many header bytes tarfile reads per member. Without a limit, tarfile loads a header of any declared size."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.left_bytes = MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left_bytes:
            raise tarfile.ReadError(f"the headers of one file have more than {MAX_HEADER_BYTES} bytes")
        self.left_bytes -= size
        return self.file.read(size)

    def seek(self, position: int) -> int:
        return self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()


def members(path: Path, opener: Callable[..., Any]) -> Iterator[tuple[IO[bytes], tarfile.TarInfo]]:
    """Yield, for each member of the tar archive at `path`, the open archive and the header of the member.

    To get the contents of the member, pass both to the function `read` below, before the next iteration. `opener` opens the archive for
    reading and decompresses it, like `gzip.open`.
    """
    packed_bytes = path.stat().st_size
    with opener(path, "rb") as file:
        headers: Any = BoundedHeaders(file)
        tar: Any = tarfile.TarFile(fileobj=headers)
        while (member := tar.next()) is not None:
            tar.members.clear()  # else tarfile keeps every header in memory
            headers.left_bytes = MAX_HEADER_BYTES
            yield file, member
            refuse_bomb(path, tar.offset, packed_bytes)
        refuse_unfinished(file, tar.offset)


def read(file: IO[bytes], member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    data = file.read(member.size)
    if len(data) < member.size:
        raise tarfile.ReadError("the end is missing")
    return data


def refuse_unfinished(file: IO[bytes], end: int) -> None:
    """Raise ReadError if the archive is damaged or incomplete behind its last member. `end` is the position at which tarfile stopped.

    A complete archive ends with zeros: at least one byte, and at most MAX_PADDING_BYTES. This is checked because tarfile also stops at a
    damaged header, and would silently omit the members after it. Reading the zeros also verifies the checksum of a compressed archive.
    """
    while block := file.read(BLOCK_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"a damaged header or a second archive at byte {end}")
        if file.tell() > end + MAX_PADDING_BYTES:
            raise tarfile.ReadError(f"more than {MAX_PADDING_BYTES} zeros after its end")
    if file.tell() <= end:
        raise tarfile.ReadError("the end is missing")
