"""`python -m pipeline doctor`: examine the machine, the checkout and the servers in seconds, and name a command that fixes each problem."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.core.refusal import Refusal, counted

if TYPE_CHECKING:
    from pipeline.core.environment import Environment
    from pipeline.tools.doctor.gpus import Gpus

Status = Literal["ok", "warning", "problem"]
COLORS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
WIDTH = 160
"""The width of the table if stdout is not a terminal."""


@dataclass(frozen=True)
class Finding:
    """What a check has found. The status is `problem` if a training would fail.

    `remedy` says what to do, with commands in backticks; "" if there is nothing to do. `name` is that of the check; `diagnosis` sets it.
    """

    status: Status
    text: str
    remedy: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f": {self.remedy}" if self.remedy else "")


ok, warning, problem = partial(Finding, "ok"), partial(Finding, "warning"), partial(Finding, "problem")


@dataclass(frozen=True)
class Context:
    """The environment variables, the checkout and the machine to check. `top` is the checkout, and `system` the root of the file system."""

    environment: "Environment"
    top: Path = field(default_factory=Path)
    system: Path = Path("/")

    @cached_property
    def gpus(self) -> "Gpus":
        """Return the version of the NVIDIA driver, and the GPUs."""
        from pipeline.tools.doctor.gpus import read_gpus

        return read_gpus(self.system)


def run(complete: bool, json: bool) -> int:
    """Print the findings as a table or as JSON. Return 1 if a training would fail, else 0.

    Unless `complete` is True, the table holds only problems and warnings. JSON holds all findings.
    """
    try:
        findings = examined()
    except ModuleNotFoundError as error:
        remedy = "`make setup`, then `source .venv/bin/activate`"
        findings = [problem(f"the package {error.name} is not installed for {sys.executable}", remedy, "lock")]
    if json:
        print(dumps(as_json(findings), indent=2, ensure_ascii=False))
    elif findings:
        print_findings(findings, complete=complete)
    return int(worst(findings) == "problem")


def examined() -> list[Finding]:
    """Return all findings. Under torchrun, the first process of each machine examines it, and the others return an empty list.

    Raises ModuleNotFoundError if a package is missing without which nothing can be examined.
    """
    from pipeline.core.environment import Environment
    from pipeline.tools.doctor import diagnosis

    try:
        environment = Environment.read()
    except Refusal as refusal:  # the other checks use the defaults; for tracking, these would be wrong
        invalid = problem("; ".join(str(refusal).splitlines()), "correct the variable, or `unset` it", "environment")
        names = [name for name in diagnosis.CHECKS if name != "tracking"]
        return [invalid, *diagnosis.examine(Context(Environment.model_construct()), names)]
    if environment.local_rank:
        return []
    return [of_environment(environment), *diagnosis.examine(Context(environment))]


def of_environment(environment: "Environment") -> Finding:
    fields = type(environment).model_fields
    names = sorted(name for name in map(str, (field.validation_alias for field in fields.values())) if os.environ.get(name))
    return ok(f"set: {', '.join(names)}" if names else "no variable of the pipeline is set", name="environment")


def worst(findings: Iterable[Finding]) -> str:
    return max((finding.status for finding in findings), key=("ok", "warning", "problem").index, default="ok")


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings for `doctor --json`. The value of `format` is increased when a key is removed or its meaning changes."""
    listed = [{"name": each.name, "status": each.status, "text": each.text, "remedy": each.remedy} for each in findings]
    return {"format": 1, "status": worst(findings), "findings": listed}


def print_findings(findings: Sequence[Finding], *, complete: bool) -> None:
    shown = [finding for finding in findings if complete or finding.status != "ok"]
    try:
        from rich.text import Text

        from pipeline.tracking import table

        rows = [
            (Text(each.status, COLORS[each.status]), each.name, Text(each.text).append(each.remedy and f"\n→ {each.remedy}", "cyan"))
            for each in shown
        ]
        table.show(rows, width=WIDTH)
    except ModuleNotFoundError:
        print(*(f"{finding.status}: {finding}" for finding in shown), sep="\n", end="\n" if shown else "")
    print(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line: how many checks have each status, and whether a training would fail."""
    problems, warnings, fine = (sum(finding.status == status for finding in findings) for status in ("problem", "warning", "ok"))
    listed = [counted(count, word) for count, word in ((problems, "problem"), (warnings, "warning")) if count]
    end = "a training would fail" if problems else "a training can run (`python -m pipeline check` examines params.yaml)"
    return f"doctor: {', '.join([*listed, f'{fine} ok'])}: {end}"
