"""The common interface of folders and archives: the list of files, their contents, and the checks that both kinds need."""

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from pipeline.io.untrusted import reason, shown
from pipeline.refusal import Refusal

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
        raise Refusal(
            f"source.root: {path}: cannot be read as a complete tar or zip archive ({reason(error)}): download or create it again"
        ) from None


def refuse_outside(path: Path, name: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise Refusal(
            f"source.root: {path}: {shown(name)}: has a path outside the archive's folder: create the archive again with relative names"
        )


def refuse_too_large(path: Path, name: str, size_bytes: int) -> None:
    if not 0 <= size_bytes <= MAX_MEMBER_BYTES:
        raise Refusal(f"source.root: {path}: {shown(name)}: has {size_bytes} bytes, more than {MAX_MEMBER_BYTES}: remove or shrink it")


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
            raise Refusal(f"source.root: {path}: {shown(name)}: occurs twice: create the archive again with one copy")
        seen.add(normalized)


def sorted_by_bytes(listing: Listing) -> Listing:
    return Listing(sorted(listing.files, key=name_bytes), sorted(listing.folders, key=name_bytes))


def name_bytes(name: str) -> bytes:
    """Return the bytes of a name, as a sort key: byte order is the same in every locale. The name need not be valid UTF-8."""
    return name.encode("utf-8", "surrogateescape")
