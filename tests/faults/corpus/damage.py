"""What may lie in place of any file, and what may befall its bytes."""

from collections.abc import Callable
from pathlib import Path


def replaced(path: Path, make: Callable[[Path], object]) -> Callable[[], None]:
    """Something else in its place."""

    def put() -> None:
        path.unlink()
        make(path)

    return put


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def cut(content: bytes, share: float) -> bytes:
    return content[: int(len(content) * share)]


def flipped(content: bytes, position: int, bit: int = 0) -> bytes:
    damaged = bytearray(content)
    damaged[position] ^= 1 << bit
    return bytes(damaged)
