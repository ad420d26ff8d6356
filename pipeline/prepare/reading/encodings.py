"""Texts that are not UTF-8: those with a byte order mark are read, and for others the refusal shows what they say in several encodings."""

import codecs
import re

from pipeline.core.untrusted import shown

MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""The longer marks come first: that of UTF-32 begins with that of UTF-16."""
ENCODINGS = ("CP1252", "CP1250", "CP1251", "GBK", "BIG5", "CP932", "CP949")
"""Usual encodings, by their names for Python and for iconv. Most texts are valid in several, so a person must recognise their own."""
SAMPLED_BYTES = 2**16
SHOWN = 20


def with_mark(content: bytes) -> str | None:
    """Return the text of a file that begins with a byte order mark of UTF-16 or UTF-32, or None. Raises UnicodeDecodeError if it is damaged."""
    codec = next((codec for mark, codec in MARKS.items() if content.startswith(mark)), None)
    return content.decode(codec) if codec else None


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return what is wrong with bytes that are not UTF-8, the command that converts their file, and what they say in each of ENCODINGS."""
    choices = [f'{name} if it says "{shown(text)}"' for name, text in readings(error.object).items()]
    encodings = f", where ENCODING is {' or '.join(choices)}, or another one (`iconv -l` lists them)" if choices else ""
    return f"is not UTF-8 (byte 0x{error.object[error.start]:02X}): convert the file by `iconv -f ENCODING -t UTF-8`{encodings}"


def readings(content: bytes) -> dict[str, str]:
    """Return the first characters beyond ASCII and those after them in each of ENCODINGS in which the text is valid, by its name."""
    first = re.search(rb"[^\x00-\x7f]", content)
    start = first.start() if first else 0
    sample = content[start : start + SAMPLED_BYTES].rpartition(b"\n")[0] or content[start : start + SAMPLED_BYTES]
    found: dict[str, str] = {}
    for name in ENCODINGS:
        try:
            text = sample.decode(name)
        except UnicodeDecodeError:
            continue
        if not re.search(r"[\x80-\x9f]", text):  # control characters, which no text has
            found[name] = text.splitlines()[0][:SHOWN]
    return found
