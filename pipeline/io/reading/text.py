"""Reads files of text: UTF-8 without NUL characters, bounded in size."""

from pathlib import Path

from pipeline.io import untrusted
from pipeline.refusal import Refusal

MOST_BYTES = 256 * 2**20
"""Upper bound for a file of text, which is read into memory as a whole."""


def read(path: Path) -> str:
    """Return the text of a file. Raises Refusal if it cannot be read, has more than MOST_BYTES bytes, or is no text in UTF-8."""
    try:
        content = untrusted.read(path, MOST_BYTES)
    except OSError as error:
        raise Refusal(
            f"source.root: {untrusted.shown(path)}: cannot be read ({error.strerror}): "
            f"make it a readable file of at most {MOST_BYTES} bytes"
        ) from None
    return decode(content, untrusted.shown(path))


def decode(content: bytes, place: str) -> str:
    """Return `content`, the bytes of a file, as text. A byte order mark is removed. `place` names the file in messages.

    Raises Refusal, which names the line, if the bytes are not valid UTF-8 or contain a NUL character.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Refusal(
            f"source.root: {place}:{line}: is not UTF-8 (byte 0x{error.object[error.start]:02X}): convert the file, such as by "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Refusal(f"source.root: {place}:{line}: has a NUL character, so it is no text: remove it, or leave out the file")
    return text
