"""`python -m pipeline doctor`: examine the machine, the checkout and the servers in seconds, and name a command that fixes each problem."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from json import dumps
from typing import TYPE_CHECKING

from pipeline.core.refusal import Refusal, counted
from pipeline.tools.doctor.finding import Context, Finding, as_json, ok, problem, worst

if TYPE_CHECKING:
    from pipeline.core.environment import Environment


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
    else:
        print_findings(findings, complete=complete)
    return int(worst(findings) == "problem")


def examined() -> list[Finding]:
    """Return all findings.

    Raises ModuleNotFoundError if a package is missing without which nothing can be examined.
    """
    from pipeline.core.environment import Environment
    from pipeline.runs.mlflow.address import Address
    from pipeline.tools.doctor import diagnosis

    try:
        environment = Environment.read()
    except Refusal as refusal:  # the other checks use the defaults; for tracking, these would be wrong
        invalid = problem(refusal.on_one_line, "correct the variable, or `unset` it", "environment")
        names = [name for name in diagnosis.CHECKS if name != "tracking"]
        return [invalid, *diagnosis.examine(Context(Environment.model_construct()), names)]
    if environment.tracking:  # an import that takes seconds on a busy machine must not count as a server that does not answer
        with suppress(ModuleNotFoundError):
            import_module("requests" if Address.of(environment).is_server else "sqlalchemy")
    return [of_environment(environment), *diagnosis.examine(Context(environment))]


def of_environment(environment: "Environment") -> Finding:
    fields = type(environment).model_fields
    names = sorted(name for name in map(str, (field.validation_alias for field in fields.values())) if os.environ.get(name))
    return ok(f"set: {', '.join(names)}" if names else "no variable of the pipeline is set", name="environment")


def print_findings(findings: Sequence[Finding], *, complete: bool) -> None:
    for each in findings:
        if complete or each.status != "ok":
            print(f"{each.status:8} {each.name:14} {each.text}" + (f"\n{'':23} → {each.remedy}" if each.remedy else ""))
    print(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line: how many checks have each status, and whether a training would fail."""
    problems, warnings, fine = (sum(finding.status == status for finding in findings) for status in ("problem", "warning", "ok"))
    listed = [counted(count, word) for count, word in ((problems, "problem"), (warnings, "warning")) if count]
    end = "a training would fail" if problems else "a training can run (`python -m pipeline check` examines params.yaml)"
    return f"doctor: {', '.join([*listed, f'{fine} ok'])}: {end}"
