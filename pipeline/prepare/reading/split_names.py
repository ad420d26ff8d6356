"""Which split a name means: of a folder, of a table, or in a column."""

import re
from collections.abc import Iterable

from pipeline.core.cells import as_truth
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trainset"), TRAIN),
    **dict.fromkeys(("valid", "val", "validation", "dev", "devset"), VALID),
    **dict.fromkeys(("test", "testing", "testset"), TEST),
}
AROUND = {"is", "in", "for", "set", "split"}
"""The other words in the name of a column of truth values that certainly is one of splits, such as `is_test`."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W0-9A-Za-z_]+")


def words(name: str) -> list[str]:
    """Return the words and numbers in a name, such as `train`, `labels` and `2` for `trainLabels_2`, in lower case."""
    return [word.lower() for word in WORD.findall(name)]


def split_in(name: str) -> str | None:
    """Return the split that a word in `name` means, or None if none or several are meant."""
    found = {SPLIT_NAMES[word] for word in words(name) if word in SPLIT_NAMES}
    return found.pop() if len(found) == 1 else None


def is_certain(column: str, values: Iterable[str]) -> bool:
    """Return True if the name of a column with `values`, which all mean splits, or the values themselves leave no doubt that it names splits.

    A column of truth values called `test_result` may hold labels.
    """
    return any(map(split_in, values)) or all(word in SPLIT_NAMES or word in AROUND for word in words(column))


def split_of_value(value: object, column: str, place: str = "") -> str:
    """Return the split that `value` in the column `column` means: a text with the name of one split, or a truth value if the column has a name
    like `is_test`.

    Raises Refusal, which begins with `place`, if it means none.
    """
    written = str(value).strip().lower()
    named = split_in(column)
    if meant := split_in(written):
        return meant
    if named and (is_so := as_truth(written)) is not None:
        return named if is_so else (TEST if named == TRAIN else TRAIN)
    raise Refusal(
        f"the column {shown(column, 60)} has {shown(value, 60)}, which is no split: write train, valid or test, or true or false in a column "
        "that is called like a split, or set source.split_column to null",
        place=place,
    )
