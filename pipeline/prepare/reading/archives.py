"""Lists and reads the files in a folder, a tar archive or a zip archive, and downloads files. Nothing is extracted to the disk."""

import bz2
import gzip
import hashlib
import lzma
import os
import shlex
import stat
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.untrusted import shown
from pipeline.prepare.progress import progress
from pipeline.prepare.reading import file_tree
from pipeline.prepare.reading.file_tree import (
    Listing,
    Member,
    Tree,
    errors_as_refusal,
    refuse_bomb,
    refuse_repeated,
    refuse_too_large,
    sorted_by_bytes,
)

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
BLOCK_BYTES = 1 << 20
MAX_DEPTH = 32
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Accepted compression methods. With any other, zipfile may decompress a whole member even if only a part is read."""
DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}

Version = tuple[int, int, int]
"""The inode, size and modification time of a file. At least one of them changes when the contents change."""


def open_tree(root: Path) -> Tree:
    """Open the folder or archive at `root`, which must exist. Raises Refusal if the archive cannot be read.

    The first bytes of an archive decide its type; its name does not.
    """
    if root.is_dir():
        return Folder(root)
    with errors_as_refusal(root):
        untrusted.size_bytes(root)
        with root.open("rb") as file:
            start = file.read(6)
        if start.startswith(b"PK"):
            return Zip(root, version_of(root))
    return Tar(root, next((opener for magic, opener in DECOMPRESSORS.items() if start.startswith(magic)), open))


def unpacked(root: Path) -> tuple[str, Path]:
    """Return the beginning of advice to unpack an archive into a folder beside it, and this folder; "" and `root` if it is a folder."""
    suffix = next((suffix for suffix in SUFFIXES if root.name.lower().endswith(suffix)), "")
    if root.is_dir() or not suffix:
        return "", root
    folder = root.with_name(root.name[: -len(suffix)])
    module = "zipfile" if suffix == ".zip" else "tarfile"
    return f"unpack it with `{shlex.join(['python', '-m', module, '-e', str(root), str(folder)])}`, and ", folder


def alone(root: Path, which: str, folders: Sequence[str]) -> str:
    """Return the advice to read one of `folders` in the folder or archive `root` alone. `which` refers to them, such as `that folder`."""
    before, around = unpacked(root)
    return f"{before}read {which} alone with {' or '.join(shlex.quote(f'data={around / folder}') for folder in folders)}"


@dataclass(frozen=True)
class Folder:
    """A folder and its subfolders. Files are listed in the order of their names, compared as bytes.

    Symbolic links are followed. A folder that can be reached in two ways, because a link leads to it, raises Refusal.
    """

    path: Path

    def listing(self) -> Listing:
        listing = Listing()
        self.collect(self.path, "", listing, seen=set())
        return sorted_by_bytes(listing)

    def collect(self, folder: Path, prefix: str, listing: Listing, *, seen: set[tuple[int, int]]) -> None:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in seen:  # else a few links per folder could multiply to an unbounded number of files
            raise Refusal(f"source.root: {shown(folder)}: is reached twice through links, perhaps one to a parent folder: remove the link")
        seen.add(identity)
        if prefix.count("/") > MAX_DEPTH:
            raise Refusal(f"source.root: {shown(folder)}: is more than {MAX_DEPTH} folders deep: choose a folder further down")
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_file(follow_symlinks=False):  # scandir already knows this, without another system call
                    listing.files.append(name)
                elif (path := Path(entry.path)).is_dir():
                    listing.folders.append(name)
                    self.collect(path, name + "/", listing, seen=seen)
                elif path.is_file() or not path.exists():  # a dangling link fails when it is read, like a corrupt file
                    listing.files.append(name)
                else:
                    raise Refusal(f"source.root: {shown(path)}: is a device, a pipe or a socket: remove it")

    def contents(self, names: Sequence[str]) -> AbstractContextManager[Iterator[Member]]:
        return nullcontext(Member(name, self) for name in names)

    def read(self, name: str) -> bytes:
        with open(f"{self.path}/{name}", "rb") as file:  # noqa: PTH123  # creating a Path costs as much as reading a small file
            size_bytes = os.fstat(file.fileno()).st_size
            refuse_too_large(self.path, name, size_bytes)
            return file.read(size_bytes)  # bounded even if the file grows meanwhile


@dataclass(frozen=True)
class Zip:
    """A zip archive, listed in byte order of the names.

    Several threads may read from the open archive at once. After pickling, each worker process opens the archive itself.
    """

    path: Path
    version: Version

    def listing(self) -> Listing:
        listing = Listing()
        with errors_as_refusal(self.path), zip_file(self.path) as archive:
            for info in archive.infolist():
                name = slashed(info)
                is_regular = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                file_tree.refuse_unusable(self.path, name, info.file_size, is_regular=is_regular)
                if info.flag_bits & 1:
                    raise Refusal(f"{file_tree.place(self.path, name)}: is encrypted: create the archive again without a password")
                if info.compress_type not in COMPRESSION_METHODS:
                    remedy = "create the archive again with the method `deflate`, or without compression"
                    raise Refusal(f"{file_tree.place(self.path, name)}: uses compression method {info.compress_type}: {remedy}")
                (listing.folders if name.endswith("/") else listing.files).append(name)
            refuse_bomb(self.path, sum(info.file_size for info in archive.infolist()), self.path.stat().st_size)
        refuse_repeated(self.path, listing.files)
        return sorted_by_bytes(listing)

    @contextmanager
    def contents(self, names: Sequence[str]) -> Iterator[Iterator[Member]]:
        open_zip(self.path, self.version)
        try:
            yield (Member(name, self) for name in names)
        finally:
            open_zip.cache_clear()

    def read(self, name: str) -> bytes:
        """Return the contents of a member. At most as many bytes are decompressed as the archive declares for the member: a damaged member
        could decompress to more.
        """
        archive, members = open_zip(self.path, self.version)
        with archive.open(members[name]) as file:
            return b"".join(iter(partial(file.read, BLOCK_BYTES), b""))


def version_of(path: Path) -> Version:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1)
def open_zip(path: Path, version: Version) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:  # noqa: ARG001  # a part of the key of the cache
    """Return the open zip archive at `path`, and its members by name. The last archive stays open, so that a further call in the same process
    returns it again.

    `version` is the inode, size and modification time that `open_tree` found for the archive: a worker of a cluster, which runs for days,
    thus opens an archive again that has been replaced since. Raises Refusal if the archive cannot be read.
    """
    with errors_as_refusal(path):
        archive = zip_file(path)
        return archive, {slashed(info): info for info in archive.infolist()}


def zip_file(path: Path) -> zipfile.ZipFile:
    """Open a zip archive. Names without the flag for UTF-8 are read as UTF-8, too, if all of them are valid: many programs do not set it."""
    try:
        return zipfile.ZipFile(path, metadata_encoding="utf-8")
    except UnicodeDecodeError:
        return zipfile.ZipFile(path)


def slashed(info: zipfile.ZipInfo) -> str:
    """Return the name of a member with `/` between folders. Some programs for Windows write a backslash, against the standard."""
    return info.filename.replace("\\", "/")


@dataclass(frozen=True)
class Tar:
    """A tar archive. Files are listed in the order in which the archive contains them.

    The archive is read from its beginning each time: once for the listing, and once for the contents.
    """

    path: Path
    opener: Callable[..., Any]

    def listing(self) -> Listing:
        listing = Listing()
        with errors_as_refusal(self.path):
            for _, member in file_tree.members(self.path, self.opener):
                if member.issparse():
                    remedy = "create the archive again without the option `--sparse` of tar"
                    raise Refusal(f"{file_tree.place(self.path, member.name)}: is sparse, that is, stored without its zero bytes: {remedy}")
                file_tree.refuse_unusable(self.path, member.name, member.size, is_regular=member.isdir() or member.isreg())
                (listing.folders if member.isdir() else listing.files).append(member.name)
        refuse_repeated(self.path, listing.files)
        return listing

    def contents(self, names: Sequence[str]) -> AbstractContextManager[Iterator[Member]]:
        return closing(self.select(iter(names)))

    def select(self, names: Iterator[str]) -> Generator[Member]:
        """Yield each file of `names` with its contents.

        `names` must be in the order of the archive. Raises Refusal if one of the files is missing or damaged.
        """
        name = next(names, None)
        with errors_as_refusal(self.path):
            for file, member in file_tree.members(self.path, self.opener):
                if member.name == name:
                    refuse_too_large(self.path, member.name, member.size)
                    yield Member(name, file_tree.read(file, member))
                    name = next(names, None)
        if name is not None:
            problem = f"{self.path}: {shown(name)} is missing, because the archive was changed while it was read"
            raise Refusal(f"source.root: {problem}: run again, and do not modify the archive meanwhile")


MEGABYTE = 1_000_000
TIMEOUT_S = 30.0
MAX_BYTES = 2**30
"""Upper bound for a download, so that an endless response does not fill the disk. Each supported dataset has less than a fifth of it."""


def fetch(path: Path, addresses: Sequence[str], *, md5: str, remedy: str) -> None:
    """Download a file to `path` from the first of `addresses` that works. `md5` is the published checksum of the file, in hexadecimal.

    If no address works, raises Unavailable with the error of each address and then `remedy`, which says what the user can do.
    """
    import http.client  # late: worker processes import this module

    errors = []
    for address in addresses:
        try:
            with files.replacing(path) as draft:
                receive(address, draft, md5=md5, label=path.name)
        except (OSError, ValueError, http.client.HTTPException) as error:
            errors.append(f"{address}: {error}")
        else:
            return
    raise Unavailable(f"source.root: {path.name} could not be downloaded ({'; '.join(errors)}): {remedy}")


def receive(address: str, draft: Path, *, md5: str, label: str) -> None:
    """Download the file at `address` to the temporary path `draft`, with a progress bar named `label`. `md5` is the expected checksum.

    Raises ValueError if the address is not an http or https URL, if the file has more than MAX_BYTES bytes, or if its MD5 is not `md5`.
    Raises OSError or HTTPException if the transfer fails.
    """
    if not address.startswith(("https://", "http://")):
        raise ValueError("is not an http or https URL")
    import urllib.request  # late, like http.client

    state = hashlib.md5(usedforsecurity=False)
    print(f"downloading {address}", flush=True)
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response, draft.open("wb") as file:  # noqa: S310  # checked above
        size_bytes = int(response.headers.get("Content-Length") or 0)
        with progress(label, -(-size_bytes // MEGABYTE), "MB") as advance:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                state.update(block)
                if file.tell() > MAX_BYTES:
                    raise ValueError(f"has more than {MAX_BYTES} bytes")
                advance(file.tell() // MEGABYTE - advance.done)
    if state.hexdigest() != md5:
        raise ValueError(f"has MD5 {state.hexdigest()}, not the published {md5}")
