"""Atomic file writes, digests, canonical JSON, CSV and file locks."""

import csv
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

BLOCK_BYTES = 1 << 20
CHUNK_BYTES = 16 * BLOCK_BYTES


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft: a temporary file beside `path`, to be written in the block of this context manager.

    If the block succeeds, the draft is fsynced and replaces `path`. If the block raises an exception, the draft is removed. Other processes
    thus see either the whole old file or the whole new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.draft")  # not the pid: two machines may share the folder
    with naming(path, draft):
        try:
            yield draft
            sync(draft)
            draft.replace(path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Within the block, give an OSError that has no file name, such as that of a failed write or flock, the name `path`, and also one that
    has the name of the `draft`.
    """
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(draft)):
            error.filename = str(path)
        raise


def sweep(folder: Path) -> None:
    """Remove the temporary files in `folder` that killed processes left: drafts of `replacing` and of `prepare`, and temporary files of safetensors.

    Call this only while no other process writes in `folder`.
    """
    for pattern in (".*.draft", ".tmp??????"):
        for draft in folder.glob(pattern):
            draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Fsync a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically, with keys in the given order. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: keys sorted, no spaces. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV, with numbers at full precision. None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hexadecimal. Raises ValueError for NaN and infinity."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's relative file names and contents, in hexadecimal."""
    if path.is_dir():
        return digest_of({member.relative_to(path).as_posix(): digest(member) for member in members(path)})
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chunked_digest(path: Path) -> str:
    """Return the digest that `ChunkedDigest` describes of a whole file. One thread for each usable CPU computes it."""
    with digest_threads() as pool:
        return ChunkedDigest(path, pool).finish()


@contextmanager
def digest_threads() -> "Iterator[Executor]":
    """Return a pool with a thread for each usable CPU. At the end of the block, digests that are not yet begun are cancelled."""
    from concurrent.futures import ThreadPoolExecutor  # late: most commands that import this module digest no large file

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class ChunkedDigest:
    """Computes a digest of a large file on the threads of `pool`: the SHA-256 of the SHA-256 digests of its chunks of CHUNK_BYTES bytes.

    The first chunks can be digested while the rest of the file is still being written.
    """

    def __init__(self, path: Path, pool: "Executor") -> None:
        self.path, self.pool = path, pool
        self.chunks: list[Future[bytes]] = []

    def advance(self, end: int) -> None:
        """Begin to digest the chunks that end at the offset `end` or before. These bytes must not change any more."""
        while (len(self.chunks) + 1) * CHUNK_BYTES <= end:
            self.chunks.append(self.pool.submit(digest_at, self.path, len(self.chunks) * CHUNK_BYTES))

    def finish(self) -> str:
        """Return the digest of the whole file, in hexadecimal. If the file becomes shorter meanwhile, the digest is another one."""
        self.advance(max(self.path.stat().st_size, 1) + CHUNK_BYTES - 1)
        return hashlib.sha256(b"".join(chunk.result() for chunk in self.chunks)).hexdigest()


def digest_at(path: Path, start: int) -> bytes:
    """Return the SHA-256 of the chunk of a file that begins at the offset `start`."""
    state = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for offset in range(start, start + CHUNK_BYTES, BLOCK_BYTES):
            state.update(os.pread(file.fileno(), BLOCK_BYTES, offset))
    return state.digest()


def members(folder: Path) -> Iterable[Path]:
    """Return the paths of all files in a folder and its subfolders, sorted. Files in folders called `__pycache__` are left out."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[bool]:
    """Hold a flock on `path`, exclusive unless `shared`, during the block of this context manager. Yield True if this process got the lock.

    If another process holds a lock that excludes this one, wait until it is free or, if `wait` is False, yield False at once. The kernel releases the lock when
    the process ends. The process that holds the lock may unlink the file; a process that waited for it then creates and locks a new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab") as file:
            is_free = True
            try:
                with naming(path):
                    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                is_free = False
            # yield after the `except` block: inside it, an error of the caller would seem to follow from this one
            if not is_free or os.fstat(file.fileno()).st_nlink:  # 0 if the last holder unlinked the file while this process waited
                yield is_free
                return
