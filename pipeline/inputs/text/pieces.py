"""Divides a text into words (`word`), or into the pieces within which `bpe` joins bytes. Both expressions take time linear in the text."""

import re
from collections.abc import Iterator

WORD = re.compile(r"\w+|[^\w\s]")
"""A run of letters, digits and underscores, or one other sign. White space only separates words."""
PIECE = re.compile(r" ?[^\W\d_]{1,999}| ?\d{1,999}| ?(?:[^\w\s]|_){1,999}|\s{1,999}(?!\S)|\s")
"""As in GPT-2: letters, digits or signs with the space before them, or white space. The pieces make up the whole text. They are bounded, because
`bpe` needs 150 bytes of memory for each byte of a piece."""


def words(text: str) -> Iterator[str]:
    return map(re.Match.group, WORD.finditer(text))


def pieces(text: str) -> Iterator[str]:
    return map(re.Match.group, PIECE.finditer(text))
