"""Names of classes: what is one name in several spellings, and the order of the classes."""

import re
import unicodedata
from collections.abc import Iterable

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.prepare.reading.file_tree import name_bytes

MAX_NAME_LENGTH = 255
WHOLE = re.compile(r"([+-]?\d+)\.0+")
NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


def canonical(name: str) -> str:
    """Return the name of a class without what cannot be seen in it: in Unicode's form NFC, and `1` for `1.0`."""
    name = unicodedata.normalize("NFC", name.strip())
    whole = WHOLE.fullmatch(name)
    return whole[1] if whole else name


def ordered(names: Iterable[str], place: str) -> tuple[str, ...]:
    """Return the canonical names of the classes, each once: whole numbers by their values, any other names in byte order.

    Raises Refusal if two names differ only in case. Single letters do not count: they are classes where letters are recognised.
    """
    classes = {canonical(name) for name in names}
    folded: dict[str, str] = {}
    for name in sorted(classes, key=name_bytes):
        other = folded.setdefault(name.casefold() if len(name) > 1 else name, name)
        if other != name:
            raise Refusal(
                f"source.root: {place}: the classes {shown(other, 60)} and {shown(name, 60)} differ only in upper and lower case: rename one of them"
            )
    if all(NUMBER.fullmatch(name) for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return tuple(sorted(classes, key=name_bytes))
