"""Lists and reads the files in a folder, a tar archive or a zip archive. Nothing is extracted to the disk."""

import bz2
import gzip
import lzma
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pipeline.io import untrusted
from pipeline.io.reading import tarstream
from pipeline.io.reading.tree import (
    Listing,
    Member,
    Tree,
    in_byte_order,
    refuse_bomb,
    refuse_outside,
    refuse_repeated,
    refuse_too_large,
    refusing,
)
from pipeline.io.untrusted import shown
from pipeline.refusal import Refusal

BLOCK_BYTES = 1 << 20
DEEPEST = 32
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Accepted compression methods. For the others, zipfile decompresses a whole member at once, however little is read."""
DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}

Identity = tuple[int, int]
"""The device and inode numbers of a folder."""
Version = tuple[int, int, int]
"""The inode, size and modification time of a file, of which one changes when the contents change."""


def opened(root: Path) -> Tree:
    """Open the folder or archive at `root`, which must exist. The type of an archive is determined by its first bytes, not by its name."""
    if root.is_dir():
        return Folder(root)
    with refusing(root):
        untrusted.size_bytes(root)
        with root.open("rb") as file:
            start = file.read(6)
        if start.startswith(b"PK"):
            return Zip(root, version_of(root))
    return Tar(root, next((opener for magic, opener in DECOMPRESSORS.items() if start.startswith(magic)), open))


@dataclass(frozen=True)
class Folder:
    """A folder, listed in byte order of the names. Symbolic links are followed; a folder that is reached twice is refused."""

    root: Path

    def listing(self) -> Listing:
        found = Listing()
        self.collect(self.root, "", found, above=frozenset(), seen=set())
        return in_byte_order(found)

    def collect(self, folder: Path, prefix: str, found: Listing, *, above: frozenset[Identity], seen: set[Identity]) -> None:
        status = folder.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise Refusal(f"source.root: {shown(folder)}: is a link to a folder that holds it: remove the link")
        if here in seen:  # else a few links per folder could multiply to an unbounded number of files
            raise Refusal(f"source.root: {shown(folder)}: is reached twice, by links: remove one")
        seen.add(here)
        if len(above) > DEEPEST:
            raise Refusal(f"source.root: {shown(folder)}: lies more than {DEEPEST} folders deep: name the folder of the images themselves")
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_file(follow_symlinks=False):  # known from scandir, without another system call
                    found.files.append(name)
                elif (path := Path(entry.path)).is_dir():
                    found.folders.append(name)
                    self.collect(path, name + "/", found, above=above | {here}, seen=seen)
                elif path.is_file() or not path.exists():  # a dangling link fails when it is read, like a corrupt file
                    found.files.append(name)
                else:
                    raise Refusal(f"source.root: {shown(path)}: is a device, a pipe or a socket: remove it")

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        yield (Member(name, self) for name in names)

    def read(self, name: str) -> bytes:
        with open(f"{self.root}/{name}", "rb") as file:  # noqa: PTH123  # creating a Path costs as much as reading a small file
            size_bytes = os.fstat(file.fileno()).st_size
            refuse_too_large(self.root, name, size_bytes)
            return file.read(size_bytes)  # bounded even if the file grows meanwhile


@dataclass(frozen=True)
class Zip:
    """A zip archive, listed in byte order of the names. Random access from several threads; each worker process opens the file itself."""

    path: Path
    version: Version

    def listing(self) -> Listing:
        found = Listing()
        with refusing(self.path), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                self.refuse_unusable(info)
                (found.folders if info.is_dir() else found.files).append(info.filename)
            refuse_bomb(self.path, sum(info.file_size for info in archive.infolist()), self.path.stat().st_size)
        refuse_repeated(self.path, found.files)
        return in_byte_order(found)

    def refuse_unusable(self, info: zipfile.ZipInfo) -> None:
        refuse_outside(self.path, info.filename)
        place = f"source.root: {self.path}: {shown(info.filename)}"
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise Refusal(f"{place}: is a link or a device: pack the file itself")
        if info.flag_bits & 1:
            raise Refusal(f"{place}: is encrypted: pack it again without a password")
        if info.compress_type not in PACKINGS:
            raise Refusal(f"{place}: is packed by method {info.compress_type}: pack it again, stored or deflated")
        refuse_too_large(self.path, info.filename, info.file_size)

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        kept_open(self.path, self.version)
        try:
            yield (Member(name, self) for name in names)
        finally:
            kept_open.cache_clear()

    def read(self, name: str) -> bytes:
        """Return the contents of a member. It is read in blocks, so that no more than its declared size is decompressed."""
        with kept_open(self.path, self.version).open(name) as file:
            return b"".join(iter(partial(file.read, BLOCK_BYTES), b""))


def version_of(path: Path) -> Version:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1)
def kept_open(path: Path, version: Version) -> zipfile.ZipFile:
    """Open a zip archive once per process. Raises Refusal where the file has changed since `version`."""
    with refusing(path):
        if version_of(path) != version:
            raise Refusal(f"source.root: {path}: changed while it was read: leave it alone until the stage has ended")
        return zipfile.ZipFile(path)


@dataclass(frozen=True)
class Tar:
    """A tar archive, listed in the order of the archive. It is read as a stream: once for the listing, once for the contents."""

    path: Path
    opener: Callable[..., Any]

    def listing(self) -> Listing:
        found = Listing()
        with refusing(self.path):
            for _, member in tarstream.members(self.path, self.opener):
                refuse_outside(self.path, member.name)
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise Refusal(f"source.root: {self.path}: {shown(member.name)}: is a link or a device: pack the file itself")
                refuse_too_large(self.path, member.name, member.size)
                (found.folders if member.isdir() else found.files).append(member.name)
        refuse_repeated(self.path, found.files)
        return found

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        members = self.wanted(iter(names))
        try:
            yield members
        finally:
            members.close()

    def wanted(self, names: Iterator[str]) -> Any:
        """Yield the named members; `names` must be in the order of the archive."""
        name = next(names, None)
        with refusing(self.path):
            for file, member in tarstream.members(self.path, self.opener):
                if member.name == name:
                    refuse_too_large(self.path, member.name, member.size)
                    yield Member(name, tarstream.read(file, member))
                    name = next(names, None)
        if name is not None:
            raise Refusal(f"source.root: {self.path}: {shown(name)}: is gone: the archive changed while it was read")
