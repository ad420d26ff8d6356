"""Texts that are not UTF-8: a byte order mark or the user names the encoding, and a refusal shows what the text says in several."""

import codecs
import re
from typing import Annotated

from pydantic import AfterValidator

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The longer marks come first: that of UTF-32 begins with that of UTF-16."""
UTF8 = "utf-8"
USUAL = ("cp1252", "cp1250", "cp1251", "gbk", "big5", "cp932", "cp949")
"""Usual encodings, by their names for Python. Most texts are valid in several, so a person must recognise their own."""
SPECIAL = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"}
"""Codecs of Python that are not encodings of files."""
SAMPLED_BYTES = 2**16
SHOWN = 10


def known(name: str) -> str:
    """Return the name of an encoding unchanged. Raises ValueError if Python does not know it."""
    try:
        codec = codecs.lookup(name)
        "".encode(name)
    except (LookupError, ValueError):
        codec = None
    if codec is None or codec.name in SPECIAL:
        raise ValueError(f"is no encoding that Python knows: write {UTF8}, or for example {', '.join(USUAL)} or utf-16")
    return name


Encoding = Annotated[str, AfterValidator(known)]


class NotDecoded(Refusal):
    """Raised for bytes that are no text in the encoding that was expected. `place` is that of the first of them."""

    def __init__(self, place: str, error: UnicodeDecodeError, encoding: str) -> None:
        self.problem = f"{place}is not {encoding.upper()} (byte 0x{error.object[error.start]:02X})"
        self.readings = readings(error.object, encoding)
        self.has_nul = b"\0" in error.object
        super().__init__(self.advising("python -m pipeline set source.encoding="))

    def advising(self, command: str) -> str:
        """Return the message with the end of the command by which a user names another encoding, such as `--encoding `."""
        if self.has_nul and not self.readings:
            remedy = f"if it is one in UTF-16, name its encoding by `{command}utf-16-le`; else write its rows into a .csv or .parquet file"
            return f"{self.problem}, and seems to be no text: {remedy}"
        ways = ", `".join(f'{name}` for "{shown(text)}"' for name, text in self.readings.items())
        return f"{self.problem}: name its encoding by `{command}{f'{ways}, or another one' if ways else 'NAME`, an encoding'} that Python knows"


def marked(content: bytes) -> str | None:
    """Return the encoding that the byte order mark of a file names, or None."""
    return next((codec for mark, codec in MARKS.items() if content.startswith(mark)), None)


def decoded(content: bytes, encoding: str, place: str = "") -> str:
    """Return the text of a file or line. A byte order mark of UTF-8, UTF-16 or UTF-32 counts more than `encoding`, and is removed.

    Raises NotDecoded if the bytes are not valid. `place` is that of the file, to which the message adds the line; "" adds none.
    """
    codec = marked(content) or encoding
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise NotDecoded(f"{place}:{line}: " if place else "", error, codec.removesuffix("-sig")) from None


def readings(content: bytes, refused: str) -> dict[str, str]:
    """Return the first characters beyond ASCII and those after them in each of USUAL but `refused` in which the text is valid, by its name."""
    first = re.search(rb"[^\x00-\x7f]", content)
    start = first.start() if first else 0
    sample = content[start : start + SAMPLED_BYTES].rpartition(b"\n")[0] or content[start : start + SAMPLED_BYTES]
    found: dict[str, str] = {}
    for name in USUAL:
        if name == refused:
            continue
        try:
            text = sample.decode(name)
        except UnicodeDecodeError:
            continue
        if not re.search(r"[\0-\x08\x80-\x9f]", text):  # control characters, which no text has
            found[name] = text.splitlines()[0][:SHOWN]
    return found


def refuse_nul(text: str, place: str = "") -> None:
    """Raise Refusal if a text has a NUL character, which JSON and Parquet can hold. `place` is the file and line for the message."""
    if "\0" in text:
        raise Refusal("has a NUL character, so it is no text", remedy="remove it", place=place)
