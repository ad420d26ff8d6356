"""Safe handling of untrusted files: opens only regular files, bounds how much is read, and makes their text safe to print."""

import errno
import os
import stat
from pathlib import Path

MOST_SHOWN = 240


class TooLarge(OSError):
    """Raised for a file larger than the limit."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(errno.EFBIG, f"Has {size} bytes, more than {most}")


def size_bytes(path: Path) -> int:
    """Return the size of a regular file. Raises OSError for anything else: reading a pipe can block, and a device may be endless."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Is a device, a pipe or a socket")
    return status.st_size


def read(path: Path, most_bytes: int) -> bytes:
    """Return the contents of a regular file. Raises OSError where it cannot be read, and TooLarge where it exceeds `most_bytes`."""
    size = size_bytes(path)
    if size > most_bytes:
        raise TooLarge(size, most_bytes)
    with path.open("rb") as file:
        return file.read(most_bytes)


def shown(text: object, most: int = MOST_SHOWN) -> str:
    """Return untrusted text as one printable line: control characters and invalid UTF-8 are escaped, and a long text loses its middle."""
    whole = str(text)
    kept = whole if len(whole) <= most else f"{whole[: most // 2]}...{whole[-most // 4 :]}"
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in kept)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    lines = str(error).strip().splitlines()
    return shown(lines[0]) if lines else type(error).__name__
