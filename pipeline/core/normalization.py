"""Normalizes a text, and divides it into words, pieces or parts, before it has tokens.

This module imports little, because MLflow's model of a text model includes this code.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from pipeline.core.tokenizer_description import Normalization


def normalize(text: str, changes: tuple[Normalization, ...]) -> str:
    """Return the text with each of `changes` applied in order. A lone surrogate becomes U+FFFD."""
    text = without_surrogates(text)
    for name in changes:
        text = " ".join(text.split()) if name == "collapse_whitespace" else by_lines(text, name)
    return text


def without_surrogates(text: str) -> str:
    """Return the text with U+FFFD in place of each lone surrogate, which no file in UTF-8 has."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def by_lines(text: str, name: Normalization) -> str:
    """Return the text after the change `name`, such as `nfc`. Each line is changed separately.

    The result is the same as for the whole text at once, because no character changes together with one on another line. This saves memory:
    the library `tokenizers` needs 80 bytes for each byte of the text that it gets.
    """
    if text.isascii():
        return text.lower() if name == "lowercase" else text
    change = normalizer(name)
    return "".join(map(change, text.splitlines(keepends=True)))


@cache
def normalizer(name: Normalization) -> Callable[[str], str]:
    from tokenizers import normalizers  # late: only texts beyond ASCII need it

    steps: dict[str, list[Any]] = {
        "nfc": [normalizers.NFC()],
        "nfkc": [normalizers.NFKC()],
        "lowercase": [normalizers.Lowercase()],
        "strip_accents": [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()],
    }
    change: Callable[[str], str] = normalizers.Sequence(steps[name]).normalize_str
    return change


WORD = re.compile(r"\w+|[^\w\s]")
"""A run of letters, digits and underscores, or one other sign. White space only separates words."""
PIECE = re.compile(r" ?[^\W\d_]{1,999}| ?\d{1,999}| ?(?:[^\w\s]|_){1,999}|\s{1,999}(?!\S)|\s")
"""A piece, as in GPT-2, consists of letters, digits or signs with the space before them, or of white space. The pieces make up the whole text. They
are bounded, because `bpe` needs 150 bytes of memory for each byte of a piece."""


def words(text: str) -> list[str]:
    return WORD.findall(text)


def pieces(text: str) -> list[str]:
    return PIECE.findall(text)


PART_CHARACTERS, LONGEST_PART = 2**16, 2**18
"""The library needs up to 1,000 bytes of memory for each character, so it gets parts of a text: the first place after PART_CHARACTERS where a cut
changes no token ends a part. Without such a place, a part of LONGEST_PART is cut off."""
BEFORE_SPACE = re.compile(r"(?<=\w)(?= )")
BEFORE_SPACE_OR_AFTER_LINE = re.compile(r"(?<=\w)(?= )|(?<=\S\n)(?=\w)")


def parts(text: str, *, cut: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the text in parts of at most LONGEST_PART characters, cut at places of the pattern `cut`."""
    start = 0
    while len(text) - start > PART_CHARACTERS:
        place = cut.search(text, start + PART_CHARACTERS, start + LONGEST_PART) if cut else None
        stop = place.start() if place else start + LONGEST_PART
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]
