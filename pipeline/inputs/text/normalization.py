"""Changes of a text before it is divided into tokens, by the Unicode tables of the library `tokenizers`, which the lock file pins."""

from collections.abc import Callable
from functools import cache
from typing import Any

from pipeline.inputs.text.description import Normalization


def normalize(text: str, changes: tuple[Normalization, ...]) -> str:
    """Return the text with each of `changes` applied in order. A lone surrogate, which no file in UTF-8 has, becomes U+FFFD."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for name in changes:
        text = " ".join(text.split()) if name == "collapse_whitespace" else by_lines(text, name)
    return text


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
