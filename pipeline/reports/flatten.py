"""Nested metrics as the flat names that MLflow takes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_SEGMENT = 200
"""MLflow takes 250 characters for a whole name; `test/per_class/` and `/precision` need 25."""
REFUSED = re.compile(r"[^\w.\- ]")


def flatten(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """`{"per_class": {"cat": {"f1": 0.9}}}` under `test` becomes `{"test/per_class/cat/f1": 0.9}`.

    In a class name, what MLflow refuses (slashes too: they make levels) becomes `_`; two names that become equal are told apart by a number.
    """
    return {f"{prefix}/{name}": float(value) for name, value in leaves(metrics)}


def leaves(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for segment, value in zip(segments(list(metrics)), metrics.values(), strict=True):
        if isinstance(value, Mapping):
            yield from ((f"{segment}/{name}", leaf) for name, leaf in leaves(value))
        else:
            yield segment, value


def segments(keys: list[str]) -> list[str]:
    """An allowed name for each key; keys that need no change keep theirs whatever the others are called."""
    taken = {key for key in keys if allowed(key) == key}
    names = []
    for key in keys:
        name = allowed(key)
        if name != key:
            candidates = (name if number == 1 else f"{name} {number}" for number in range(1, len(keys) + 1))
            name = next(candidate for candidate in candidates if candidate not in taken)
            taken.add(name)
        names.append(name)
    return names


def allowed(key: str) -> str:
    """MLflow normalises a name like a path, so a segment of dots alone, or none at all, is refused as well."""
    name = REFUSED.sub("_", key)[:LONGEST_SEGMENT]
    return name if name.strip(". ") else "_" * max(1, len(name))
