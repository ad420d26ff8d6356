"""Folders, tar and zip archives alike: the names in them, and the bytes of one file after another. Nothing is extracted to the disk."""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from pipeline.reading.tree import (
    MEMBER_BYTES,
    Listing,
    Member,
    Tree,
    in_byte_order,
    refuse_outside,
    refuse_repeated,
    refuse_too_large,
    refusing,
    shown,
)
from pipeline.refusal import Refusal

BLOCK_BYTES = 1 << 20
DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


def opened(root: Path) -> Tree:
    """The tree at `root`, which exists; told by its first bytes, not by its name."""
    if root.is_dir():
        return Folder(root)
    with refusing(root), root.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"PK"):
        return Zip(root)
    return Tar(root, next((opener for magic, opener in DECOMPRESSORS.items() if start.startswith(magic)), open))


@dataclass(frozen=True)
class Folder:
    """Files in the order of their names' bytes; links are followed, but not in circles."""

    root: Path

    def listing(self) -> Listing:
        found = Listing()
        self.collect(self.root, "", found, above=frozenset())
        return in_byte_order(found)

    def collect(self, folder: Path, prefix: str, found: Listing, above: frozenset[tuple[int, int]]) -> None:
        status = folder.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise Refusal(f"source.root: {shown(folder)}: is a link to a folder that holds it: remove the link")
        with os.scandir(folder) as entries:
            for entry in entries:
                name, path = prefix + entry.name, Path(entry.path)
                if entry.is_dir():
                    found.folders.append(name)
                    self.collect(path, name + "/", found, above | {here})
                elif entry.is_file() or not path.exists():  # a link that leads nowhere fails when it is read, like any corrupt file
                    found.files.append(name)
                else:
                    raise Refusal(f"source.root: {shown(path)}: is a device, a pipe or a socket: remove it")

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        yield (Member(name, partial(self.read, name), 0) for name in names)

    def read(self, name: str) -> bytes:
        with (self.root / name).open("rb") as file:
            refuse_too_large(self.root, name, os.fstat(file.fileno()).st_size)
            return file.read(MEMBER_BYTES)


@dataclass(frozen=True)
class Zip:
    """Files in the order of their names' bytes, read at random and on many threads."""

    path: Path

    def listing(self) -> Listing:
        found = Listing()
        with refusing(self.path), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                refuse_outside(self.path, info.filename)
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise Refusal(f"source.root: {self.path}: {shown(info.filename)}: is a link or a device: pack the file itself")
                if info.flag_bits & 1:
                    raise Refusal(f"source.root: {self.path}: {shown(info.filename)}: is encrypted: pack it again without a password")
                refuse_too_large(self.path, info.filename, info.file_size)
                (found.folders if info.is_dir() else found.files).append(info.filename)
        refuse_repeated(self.path, found.files)
        return in_byte_order(found)

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        with refusing(self.path):
            archive = zipfile.ZipFile(self.path)
        with archive:
            yield (Member(name, partial(archive.read, name), 0) for name in names)


@dataclass(frozen=True)
class Tar:
    """Files in the order of the archive, which is read as one stream: once for the listing, once for the contents."""

    path: Path
    opener: Callable[..., Any]

    def listing(self) -> Listing:
        found = Listing()
        with refusing(self.path):
            for _, member in self.stream():
                refuse_outside(self.path, member.name)
                if not (member.isdir() or member.isreg()):
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
        name = next(names, None)
        with refusing(self.path):
            for tar, member in self.stream():
                if member.name == name:
                    data = read_member(tar, member)
                    yield Member(name, partial(bytes, data), len(data))
                    name = next(names, None)
        if name is not None:
            raise Refusal(f"source.root: {self.path}: {shown(name)}: is gone: the archive changed while it was read")

    def stream(self) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        with self.opener(self.path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # or the headers of a million files stay in memory
                yield tar, member
            refuse_unfinished(file, tar.offset)


def read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, "only regular files are listed"
    return file.read()


def refuse_unfinished(file: IO[bytes], end: int) -> None:
    """Tarfile takes a damaged header for the end, so what follows must be zeros; reading it also checks the compression's checksum."""
    while block := file.read(BLOCK_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"a damaged header or a second archive at byte {end}")
    if file.tell() <= end:
        raise tarfile.ReadError("its end is missing")
