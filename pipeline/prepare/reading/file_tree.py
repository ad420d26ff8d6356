"""Reads the files of a folder, a zip or a tar archive alike, in a fixed order."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason, shown

MAX_MEMBER_BYTES = 256 * 2**20
MAX_UNPACKED_BYTES = 64 * 2**20
MAX_COMPRESSION_RATIO = 300
"""An archive may unpack to MAX_UNPACKED_BYTES or to MAX_COMPRESSION_RATIO times its size, whichever is larger.

Images hardly compress; decompression bombs do.
"""
READ_ERRORS = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, KeyError, OSError, zlib.error)
"""The exceptions that reading a damaged or missing member may raise."""


@dataclass
class Listing:
    """The names of the files and of the folders in a folder or archive, relative to it. Empty folders are included.

    The names are kept as stored, such as `./a/0.png`. They are in byte order, or for a tar archive in the order of the archive.
    """

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


class FileReader(Protocol):
    """Reads any file by its name. May be used on several threads, and, after pickling, in another process."""

    def read(self, name: str) -> bytes:
        """Return the contents of a file. Raises one of READ_ERRORS if the file is damaged or cannot be opened.

        Raises Refusal if the file is too large. Catch Refusal before READ_ERRORS: it is a ValueError, and
        READ_ERRORS contains ValueError.
        """


class Member(NamedTuple):
    """A file: its name, and either its contents in memory or the reader that loads them."""

    name: str
    content: bytes | FileReader

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read(self.name)

    @property
    def held_bytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else 0


class Tree(Protocol):
    """A folder or an archive. No file may be larger than MAX_MEMBER_BYTES."""

    def listing(self) -> Listing:
        """Return the names of all files and folders.

        Raises Refusal if an entry is neither a file nor a folder. For a folder, also if it is too deep, or reached twice through links. For
        an archive, also if it cannot be read or would unpack to too many bytes, or if a file in it is too large, occurs twice or has a
        path outside the archive's folder.
        """

    def contents(self, names: Sequence[str]) -> AbstractContextManager[Iterator[Member]]:
        """Return a context manager for `with`. Its value is an iterator over the files with these names, valid only inside the `with`.

        `names` must be in the order of `listing()`.
        """


@contextmanager
def errors_as_refusal(path: Path) -> Iterator[None]:
    try:
        yield
    except Refusal:
        raise
    except Exception as error:  # the standard library's readers may raise any exception on untrusted bytes
        problem = f"{path}: cannot be read as a complete tar or zip archive ({reason(error)})"
        raise Refusal(f"source.root: {problem}: download or create it again") from None


def place(path: Path, name: str) -> str:
    """Return the beginning of a message about the member called `name` of an archive. It takes longer than the checks of the member."""
    return f"source.root: {path}: {shown(name)}"


def refuse_unusable(path: Path, name: str, size_bytes: int, *, is_regular: bool) -> None:
    """Raise Refusal if a member of the archive `path` has a path outside of its folder, is a link or a device, or is too large."""
    if name.startswith("/") or ".." in name.split("/"):
        raise Refusal(f"{place(path, name)}: has a path outside the archive's folder: create the archive again with relative names")
    if not is_regular:
        raise Refusal(f"{place(path, name)}: is a link or a device: put the file itself into the archive, or leave it out")
    refuse_too_large(path, name, size_bytes)


def refuse_too_large(path: Path, name: str, size_bytes: int) -> None:
    if not 0 <= size_bytes <= MAX_MEMBER_BYTES:
        raise Refusal(f"{place(path, name)}: has {size_bytes} bytes, more than {MAX_MEMBER_BYTES}: remove or shrink it")


def refuse_bomb(path: Path, unpacked_bytes: int, packed_bytes: int) -> None:
    """Raise Refusal if an archive of `packed_bytes` would unpack to more than MAX_COMPRESSION_RATIO allows."""
    if unpacked_bytes > max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * packed_bytes):
        raise Refusal(
            f"source.root: {path}: has {packed_bytes} bytes that unpack to {unpacked_bytes} or more, over {MAX_COMPRESSION_RATIO} times as many: "
            "images do not compress this well; if you trust the archive, extract it and use the folder instead"
        )


def refuse_repeated(path: Path, names: Iterable[str]) -> None:
    """Raise Refusal if a file occurs twice in an archive; `./a/0.png` and `a/0.png` count as the same file."""
    seen: set[str] = set()
    for name in names:
        normalized = "/".join(part for part in name.split("/") if part not in ("", "."))
        if normalized in seen:
            raise Refusal(f"{place(path, name)}: occurs twice: create the archive again with one copy")
        seen.add(normalized)


def sorted_by_bytes(listing: Listing) -> Listing:
    return Listing(sorted(listing.files, key=name_bytes), sorted(listing.folders, key=name_bytes))


def name_bytes(name: str) -> bytes:
    """Return the bytes of a name, as a sort key: byte order is the same in every locale. The name need not be valid UTF-8."""
    return name.encode("utf-8", "surrogateescape")


BLOCK_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 18
MAX_PADDING_BYTES = 1 << 26


class BoundedHeaders:
    """Wraps a file and limits how many header bytes tarfile reads per member. Without a limit, tarfile loads a header of any declared size."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.left_bytes = MAX_HEADER_BYTES
        self.last = b""
        """The bytes that were read last."""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left_bytes:
            raise tarfile.ReadError(f"the headers of one file have more than {MAX_HEADER_BYTES} bytes")
        self.left_bytes -= size
        self.last = self.file.read(size)
        return self.last

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
        refuse_unfinished(file, tar.offset, headers.last)


def read(file: IO[bytes], member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    data = file.read(member.size)
    if len(data) < member.size:
        raise tarfile.ReadError("the end is missing")
    return data


def refuse_unfinished(file: IO[bytes], end: int, block: bytes) -> None:
    """Raise ReadError if the archive is damaged or incomplete behind its last member. `end` is the position at which tarfile stopped, and
    `block` what it has read there.

    A complete archive ends with zeros: at least one byte, and at most MAX_PADDING_BYTES. This is checked because tarfile also stops at a
    damaged header, and would silently omit the members after it. Reading the zeros also verifies the checksum of a compressed archive.
    """
    while block:
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"a damaged header or a second archive at byte {end}")
        if file.tell() > end + MAX_PADDING_BYTES:
            raise tarfile.ReadError(f"more than {MAX_PADDING_BYTES} zeros after its end")
        block = file.read(BLOCK_BYTES)
    if file.tell() <= end:
        raise tarfile.ReadError("the end is missing")
