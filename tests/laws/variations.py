"""What may differ between two machines of one kind, combined so that few rows hold every pair of values."""

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence

ANOTHER_UID = "65534"

Row = dict[str, str]


def covering(factors: Mapping[str, Sequence[str]]) -> list[Row]:
    """Rows that hold every pair of values of every two factors, the row with most of what is missing first."""
    rows = [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]
    missing = set().union(*(pairs(row) for row in rows))
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def pairs(row: Row) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(sorted(row.items()), 2))


def locales() -> list[str]:
    """C, C.UTF-8, and one more where one is installed: it may write numbers with a comma."""
    installed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    return ["C", "C.UTF-8", *[name for name in installed if not name.startswith(("C", "POSIX"))][:1]]


def users() -> list[str]:
    """Only root can become another."""
    return [str(os.getuid()), *([ANOTHER_UID] if os.getuid() == 0 else [])]
