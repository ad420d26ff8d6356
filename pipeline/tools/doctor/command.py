"""`python -m pipeline doctor`: examine the machine, the tracking store and the checkout in seconds, and name a command that fixes each problem."""

import sys
from contextlib import suppress
from importlib import import_module
from json import dumps
from typing import Any

from pipeline.core.refusal import Refusal, counted

LEVELS = ("problem", "warning", "ok")


def run(complete: bool, json: bool) -> int:
    """Print the findings as a table or as JSON. Return 1 if a training would fail, else 0.

    Unless `complete` is True, the table holds only problems and warnings. JSON holds all findings.
    """
    try:
        found = examined()
    except ModuleNotFoundError as error:
        text = f"the package {error.name} is not installed for {sys.executable}"
        found = [{"name": "lock", "status": "problem", "text": text, "remedy": "`make setup`, then `source .venv/bin/activate`"}]
    counts = {level: sum(each["status"] == level for each in found) for level in LEVELS}
    worst = next(level for level in LEVELS if counts[level])
    if json:
        print(dumps({"format": 2, "status": worst, "findings": found}, indent=2, ensure_ascii=False))
        return int(worst == "problem")
    for each in found:
        if complete or each["status"] != "ok":
            print(f"{each['status']:8} {each['name']:14} {each['text']}" + (f"\n{'':23} → {each['remedy']}" if each["remedy"] else ""))
    listed = [counted(counts[level], level) for level in LEVELS[:2] if counts[level]]
    end = "a training would fail" if counts["problem"] else "a training can run (`python -m pipeline check` examines params.yaml)"
    print(f"doctor: {', '.join([*listed, str(counts['ok']) + ' ok'])}: {end}")
    return int(worst == "problem")


def examined() -> list[dict[str, Any]]:
    """Return all findings. Raises ModuleNotFoundError if a package is missing without which nothing can be examined."""
    from pipeline.core.environment import Environment
    from pipeline.runs.mlflow.address import Address
    from pipeline.tools.doctor import checks

    found: list[checks.Finding] = []
    try:
        environment, names = Environment.read(), list(checks.CHECKS)
    except Refusal as refusal:  # the other checks use the defaults; for tracking, these would be wrong
        found.append(checks.problem(refusal.on_one_line, "correct the variable, or `unset` it", "environment"))
        environment, names = Environment.model_construct(), [name for name in checks.CHECKS if name != "tracking"]
    if (
        "tracking" in names and environment.tracking
    ):  # an import that takes seconds on a busy machine must not count as a server that does not answer
        with suppress(ModuleNotFoundError):
            import_module("requests" if Address.of(environment).is_server else "sqlalchemy")
    found += checks.examine(checks.Context(environment), names)
    return [{"name": each.name, "status": each.status, "text": each.text, "remedy": each.remedy} for each in found]
