"""Files that are whole or absent, digests, canonical JSON and locks."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft beside `path` that takes its place, fsynced, when the block succeeds, and vanishes when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.filename in (None, str(draft)):  # a failed write does not say where
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the drafts that killed writers left in a folder, ours and those of safetensors; nobody may be writing there."""
    for pattern in (".*.draft", ".tmp??????"):
        for draft in folder.glob(pattern):
            draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, keys in the order given, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def canonical(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder's relative names and contents, in hexadecimal."""
    if path.is_dir():
        return digest_of({member.relative_to(path).as_posix(): digest(member) for member in members(path)})
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def members(folder: Path) -> Iterable[Path]:
    """The files below a folder that can decide a result, sorted; what Python leaves behind is not among them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive flock on `path`; yields whether it was taken (always, when waiting). The kernel drops it with the process.

    Whoever holds the lock may unlink the file: a lock on a file that is no longer at its path is taken anew.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = lock(path, wait=wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def lock(path: Path, *, wait: bool) -> int | None:
    """The open and locked file at `path`; None where another holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
