"""Selects the parameters of a network by patterns of their names, which are those in the model file."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pipeline.io.untrusted import shown
from pipeline.refusal import Refusal


def matching(patterns: Iterable[str], names: Sequence[str], key: str) -> set[str]:
    """Return the names that match at least one of `patterns`.

    Raises Refusal if a pattern matches no name. The message contains the names nearest to the pattern, and `key`, the key in params.yaml
    under which the patterns are written.
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise Refusal(f"{key}: {shown(pattern)} matches no parameter: the nearest are {', '.join(nearest(pattern, names))}")
        found |= matched
    return found


def nearest(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the three candidates most similar to `pattern`. A candidate is a parameter name, or `MODULE.*` for all names below a module."""
    modules = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    return get_close_matches(pattern, [*(f"{module}.*" for module in sorted(modules)), *names], n=3, cutoff=0)
