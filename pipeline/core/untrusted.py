"""Safe handling of untrusted files: opens only regular files, bounds how much is read, and makes untrusted text safe to print."""

import errno
import os
import stat
from pathlib import Path

MAX_SHOWN = 240


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
