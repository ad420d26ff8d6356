"""Holds what a check has found, and reads what checks look at: the environment, the checkout, and the GPUs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.runs.utilization import Gpus, read_gpus

if TYPE_CHECKING:
    from pipeline.core.environment import Environment

CUDA_OF_TORCH = re.compile(r"^cuda\b.*= *'([\d.]+)'", re.MULTILINE)
Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Holds what a check has found. The status is `problem` if a training would fail.

    `remedy` says what to do, with commands in backticks; "" if there is nothing to do. `name` is that of the check; `diagnosis` sets it.
    """

    status: Status
    text: str
    remedy: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f": {self.remedy}" if self.remedy else "")


ok, warning, problem = partial(Finding, "ok"), partial(Finding, "warning"), partial(Finding, "problem")


def worst(findings: Iterable[Finding]) -> str:
    return max((finding.status for finding in findings), key=("ok", "warning", "problem").index, default="ok")


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings for `doctor --json`. The value of `format` is increased when a key is removed or its meaning changes."""
    listed = [{"name": each.name, "status": each.status, "text": each.text, "remedy": each.remedy} for each in findings]
    return {"format": 2, "status": worst(findings), "findings": listed}


def cuda_of_torch() -> str | None:
    """Return the CUDA version with which torch was built, such as "13.2"; None if torch was built without CUDA or is not installed."""
    match = CUDA_OF_TORCH.search(version_file("torch"))
    return match[1] if match else None


def version_file(package: str) -> str:
    """Return the text of `version.py` of an installed package, which is not imported; "" if it has none."""
    found = find_spec(package)
    path = Path(found.origin).with_name("version.py") if found and found.origin else Path()
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@dataclass(frozen=True)
class Context:
    """The environment variables, the checkout and the machine to check. `top` is the checkout, and `system` the root of the file system."""

    environment: "Environment"
    top: Path = field(default_factory=Path)
    system: Path = Path("/")

    @cached_property
    def gpus(self) -> Gpus:
        """Return the version of the NVIDIA driver, and the GPUs."""
        return read_gpus(self.system)
