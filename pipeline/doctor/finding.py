"""What a check has found. This module needs only Python's own library, so that missing packages can be reported."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of the check called `name`. The status is `problem` if a training would fail.

    `text` says what is there. `remedy` says how to mend it, or is "" if nothing is to be done; commands are in backticks.
    """

    name: str
    status: Status
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f": {self.remedy}" if self.remedy else "")


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings for `doctor --json`. The number of the format changes if a key is removed or gets another meaning."""
    found = list(findings)
    return {"format": 1, "status": worst(found), "findings": [vars(finding) for finding in found]}


def worst(findings: Iterable[Finding]) -> str:
    return max((finding.status for finding in findings), key=("ok", "warning", "problem").index, default="ok")
