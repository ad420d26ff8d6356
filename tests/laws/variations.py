"""What may differ between two machines of one kind, combined into few rows that hold every value or every pair of values."""

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence

ANOTHER_UID = "65534"

Row = dict[str, str]


def covering(factors: Mapping[str, Sequence[str]], strength: int) -> list[Row]:
    """Return few rows in which the values of every `strength` factors occur in every combination, chosen greedily."""
    rows = [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]
    missing = set().union(*(combinations(row, strength) for row in rows))
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(combinations(row, strength) & missing)))
        missing -= combinations(chosen[-1], strength)
    return chosen


def combinations(row: Row, strength: int) -> set[tuple[tuple[str, str], ...]]:
    """Return all combinations of `strength` factors with their values in this row."""
    return set(itertools.combinations(sorted(row.items()), strength))


def locales() -> list[str]:
    """Return C, C.UTF-8 and, if one is installed, another one, which may write numbers with a comma."""
    installed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    return ["C", "C.UTF-8", *[name for name in installed if not name.startswith(("C", "POSIX"))][:1]]


def users() -> list[str]:
    """Return the present user and, for root, another one."""
    return [str(os.getuid()), *([ANOTHER_UID] if os.getuid() == 0 else [])]
