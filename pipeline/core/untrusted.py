"""Safe handling of untrusted files: opens only regular files, bounds how much is read, and makes untrusted text safe to print."""

import errno
import os
import re
import stat
import unicodedata
from pathlib import Path

MAX_SHOWN = 240
WHOLE = re.compile(r"([+-]?\d+)\.0+")
MOST_VALUES, MOST_KEYS = 900_000, 2**17
"""Enough for a description of data whose tokenizer has 262,144 tokens and twice as many merges."""


class TooLarge(OSError):
    """Raised for a file larger than the limit."""

    def __init__(self, size: int, max_length: int) -> None:
        super().__init__(errno.EFBIG, f"Has {size} bytes, more than {max_length}")


def size_bytes(path: Path) -> int:
    """Return the size of a regular file. Raises OSError for any other file: reading a pipe can block, and reading a device may never end."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Is a device, a pipe or a socket")
    return status.st_size


def read(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a regular file.

    Raises OSError if `path` is not a regular file or cannot be read, and TooLarge if the file has more than `max_bytes` bytes.
    """
    size = size_bytes(path)
    if size > max_bytes:
        raise TooLarge(size, max_bytes)
    with path.open("rb") as file:
        return file.read(max_bytes)


def refuse_crowded(content: bytes) -> None:
    """Raise OSError if the JSON text `content` has more than MOST_VALUES values or MOST_KEYS keys.

    A parser needs a hundred bytes for an empty list, and pydantic an error for each unknown key.
    """
    if content.count(b",") > MOST_VALUES or content.count(b'":') > MOST_KEYS:
        raise OSError(errno.EFBIG, f"Has more than {MOST_VALUES} values or {MOST_KEYS} keys")


def shown(text: object, max_length: int = MAX_SHOWN) -> str:
    """Return untrusted text as one printable line. Control characters and invalid UTF-8 are escaped.

    If the text has more than `max_length` characters, `...` replaces its middle.
    """
    full = str(text)
    shortened = full if len(full) <= max_length else f"{full[: max_length // 2]}...{full[-max_length // 4 :]}"
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in shortened)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, made printable by `shown`. If the message is empty, return the name of the error's type."""
    lines = str(error).strip().splitlines()
    return shown(lines[0]) if lines else type(error).__name__


def canonical(name: str) -> str:
    """Return the name of a class or category without what cannot be seen in it: in Unicode's form NFC, and `1` for `1.0`."""
    name = unicodedata.normalize("NFC", name.strip())
    whole = WHOLE.fullmatch(name)
    return whole[1] if whole else name


def storable(name: str) -> str:
    """Return a name as UTF-8 can store it: a byte of a file name that is not UTF-8 is escaped."""
    return name.encode("utf-8", "backslashreplace").decode()
