"""The result of a check, as text and as JSON, and what the checks examine.

This module imports only the standard library at its top, so that it can report missing packages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pipeline.core.environment import Environment
    from pipeline.tools.doctor.nvml import Gpus

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of the check called `name`. The status is `problem` if a training would fail.

    `text` describes what the check found. `remedy` says what to do, with commands in backticks; "" if there is nothing to do.
    """

    name: str
    status: Status
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f": {self.remedy}" if self.remedy else "")


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings for `doctor --json`. The value of `format` is increased when a key is removed or its meaning changes."""
    found = list(findings)
    return {"format": 1, "status": worst(found), "findings": [vars(finding) for finding in found]}


def worst(findings: Iterable[Finding]) -> str:
    return max((finding.status for finding in findings), key=("ok", "warning", "problem").index, default="ok")


@dataclass(frozen=True)
class Context:
    """The environment variables, the checkout and the machine to check. `top` is the checkout, and `system` the root of the file system."""

    environment: "Environment"
    top: Path = field(default_factory=Path)
    system: Path = Path("/")

    @cached_property
    def gpus(self) -> "Gpus":
        """Return the version of the NVIDIA driver, and the GPUs."""
        from pipeline.tools.doctor import nvml

        return nvml.read(self.system)
