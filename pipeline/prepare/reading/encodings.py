"""Recognises the encoding of a text that is not UTF-8: by its byte order mark, or because it gives characters that its languages use."""

import codecs
import re
from collections.abc import Callable
from typing import NamedTuple

from pipeline.core.untrusted import shown

MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""The longer marks come first: that of UTF-32 begins with that of UTF-16."""
SAMPLED_BYTES = 2**16
SHOWN = 20
FOREIGN = re.compile(r"[^\x00-\x7f]+")


class Encoding(NamedTuple):
    """An encoding by its names for Python and for iconv. `is_typical` says if adjacent characters beyond ASCII are usual in its languages.

    Where several encodings are equally likely, the first one in ENCODINGS counts: Korean in GBK is Chinese of frequent characters, too.
    """

    codec: str
    name: str
    is_typical: Callable[[str], bool]


def first_level(codec: str, first: int, last: int) -> Callable[[str], bool]:
    """Return a function that says if characters are among the frequent ones of `codec`, those whose first bytes are from `first` to `last`."""

    def is_typical(run: str) -> bool:
        data = run.encode(codec, "ignore")
        return len(data) == 2 * len(run) and all(first <= byte <= last for byte in data[::2])

    return is_typical


def matching(pattern: str) -> Callable[[str], bool]:
    return lambda run: re.fullmatch(pattern, run) is not None


WIDE = "\u3001-\u301c\uff01-\uff5e"
"""Punctuation and letters of the width of a Chinese character."""
KANA, HAN = "\u3041-\u30fc", "\u3400-\u9fff"
CAPITALS, SMALL = "\u0401\u0410-\u042f", "\u0430-\u044f\u0451"
ENCODINGS = (
    Encoding(
        "cp1252",
        "CP1252",
        matching("[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0152-\u017e\u2013-\u2026\u20ac\u00a3\u00ab\u00bb\u00b0\u00a7]"),
    ),
    Encoding("cp1251", "CP1251", matching(f"[{CAPITALS}]?[{SMALL}]*|[{CAPITALS}]*")),
    Encoding("cp949", "CP949", first_level("euc_kr", 0xA1, 0xC8)),
    Encoding("cp932", "CP932", matching(f"[{KANA}{HAN}{WIDE}]*[{KANA}][{KANA}{HAN}{WIDE}]*")),
    Encoding("gbk", "GBK", first_level("gb2312", 0xA1, 0xD7)),
    Encoding("big5", "BIG5", first_level("big5", 0xA1, 0xC6)),
)


def with_mark(content: bytes) -> str | None:
    """Return the text of a file that begins with a byte order mark of UTF-16 or UTF-32, or None. Raises UnicodeDecodeError if it is damaged."""
    codec = next((codec for mark, codec in MARKS.items() if content.startswith(mark)), None)
    return content.decode(codec) if codec else None


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return what is wrong with bytes that are not UTF-8, and the command that converts their file."""
    found = likely(error.object)
    guess = f", but probably {found[0]}, in which it has {shown(found[1])}" if found else ""
    command = f"iconv -f {found[0] if found else 'ENCODING'} -t UTF-8"
    return f"is not UTF-8 (byte 0x{error.object[error.start]:02X}){guess}: convert the file, such as by `{command}`"


def likely(content: bytes) -> tuple[str, str] | None:
    """Return the name of the most likely encoding for iconv, and the first characters beyond ASCII in it; None if none is likely."""
    first = re.search(rb"[^\x00-\x7f]", content)
    start = first.start() if first else 0
    sample = content[start : start + SAMPLED_BYTES].rpartition(b"\n")[0] or content[start : start + SAMPLED_BYTES]
    scores: dict[str, tuple[float, str]] = {}
    for encoding in ENCODINGS:
        try:
            runs = FOREIGN.findall(sample.decode(encoding.codec))
        except UnicodeDecodeError:
            continue
        typical = sum(len(run) for run in runs if encoding.is_typical(run))
        scores[encoding.name] = (typical / max(1, sum(map(len, runs))), runs[0] if runs else "")
    name = max(scores, key=lambda name: scores[name][0], default="")
    return (name, scores[name][1][:SHOWN]) if name and scores[name][0] > 0.5 else None
