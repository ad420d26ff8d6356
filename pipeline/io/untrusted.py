"""Files that others wrote: only regular ones are opened, no more is read of them than is allowed, and what they say is fit to be printed."""

import errno
import os
import stat
from pathlib import Path

MOST_SHOWN = 240


class TooLarge(OSError):
    """A file of more bytes than are read."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(errno.EFBIG, f"Has {size} bytes, more than {most}")


def size_bytes(path: Path) -> int:
    """Of a regular file. Raises OSError for all else: a pipe would be waited for, and a device may have no end."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Is a device, a pipe or a socket")
    return status.st_size


def read(path: Path, most_bytes: int) -> bytes:
    """A whole regular file. Raises OSError, and TooLarge for one of more than `most_bytes`."""
    size = size_bytes(path)
    if size > most_bytes:
        raise TooLarge(size, most_bytes)
    with path.open("rb") as file:
        return file.read(most_bytes)


def shown(text: object, most: int = MOST_SHOWN) -> str:
    """A stranger's words on one line: no control characters, no broken UTF-8, and of a long text its two ends."""
    whole = str(text)
    kept = whole if len(whole) <= most else f"{whole[: most // 2]}...{whole[-most // 4 :]}"
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in kept)


def reason(error: BaseException) -> str:
    """What an error says, on one line; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return shown(lines[0]) if lines else type(error).__name__
