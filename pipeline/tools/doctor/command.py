"""`python -m pipeline doctor`: examine the machine, the checkout and the servers in seconds, and name a command that fixes each problem."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.core.refusal import Refusal
from pipeline.tools.doctor.finding import Finding, as_json, worst

if TYPE_CHECKING:
    from pipeline.core.environment import Environment

COLORS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
WIDTH = 160
"""The width of the table if stdout is not a terminal."""


def run(complete: bool, json: bool) -> int:
    """Print the findings as a table or as JSON. Return 1 if a training would fail, else 0.

    Unless `complete` is True, the table holds only problems and warnings. JSON holds all findings.
    """
    try:
        findings = examined()
    except ModuleNotFoundError as error:
        remedy = "`make setup`, then `source .venv/bin/activate`"
        findings = [Finding("lock", "problem", f"the package {error.name} is not installed for {sys.executable}", remedy)]
    if json:
        print_json(findings)
    elif findings:
        print_table(findings, complete=complete)
    return int(worst(findings) == "problem")


def examined() -> list[Finding]:
    """Return all findings. Under torchrun, the first process of each machine examines it, and the others return an empty list.

    Raises ModuleNotFoundError if a package is missing without which nothing can be examined.
    """
    from pipeline.core.environment import Environment
    from pipeline.tools.doctor import diagnosis
    from pipeline.tools.doctor.finding import Context

    try:
        environment = Environment.read()
    except Refusal as refusal:  # the other checks use the defaults; for tracking, these would be wrong
        problem = Finding("environment", "problem", "; ".join(str(refusal).splitlines()), "correct the variable, or `unset` it")
        names = [name for name in diagnosis.CHECKS if name != "tracking"]
        return [problem, *diagnosis.examine(Context(Environment.model_construct()), names)]
    if environment.local_rank:
        return []
    return [of_environment(environment), *diagnosis.examine(Context(environment))]


def of_environment(environment: "Environment") -> Finding:
    fields = type(environment).model_fields
    names = sorted(name for name in map(str, (field.validation_alias for field in fields.values())) if os.environ.get(name))
    return Finding("environment", "ok", f"set: {', '.join(names)}" if names else "no variable of the pipeline is set")


def print_json(findings: Sequence[Finding]) -> None:
    import json

    print(json.dumps(as_json(findings), indent=2, ensure_ascii=False))


def print_table(findings: Sequence[Finding], *, complete: bool) -> None:
    rows = [finding for finding in findings if complete or finding.status != "ok"]
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        print(*(f"{finding.status}: {finding}" for finding in rows), summary(findings), sep="\n")
        return
    table = Table.grid(padding=(0, 2))
    for finding in rows:
        text = Text(finding.text)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", style="cyan")
        table.add_row(Text(finding.status, style=COLORS[finding.status]), finding.name, text)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    with console.capture() as rendered:
        if rows:
            console.print(table)
        console.print(summary(findings), markup=False)
    print(*(line.rstrip() for line in rendered.get().splitlines()), sep="\n")  # rich fills each line with spaces


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line: how many checks have each status, and whether a training would fail."""
    problems, warnings, fine = (sum(finding.status == status for finding in findings) for status in ("problem", "warning", "ok"))
    listed = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((problems, "problem"), (warnings, "warning")) if count]
    end = "a training would fail" if problems else "a training can run (`python -m pipeline check` examines params.yaml)"
    return f"doctor: {', '.join([*listed, f'{fine} ok'])}: {end}"
