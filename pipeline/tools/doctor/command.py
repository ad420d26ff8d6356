"""`python -m pipeline doctor`: examine the machine, the checkout and the servers in seconds, and name a command that fixes each problem."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.tools.doctor import checkout, gpus, packages, resources, tracking
from pipeline.tools.doctor.finding import Context, Finding, as_json, worst
from pipeline.tracking.address import Address

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
    from pipeline.tools.doctor.finding import Context

    try:
        environment = Environment.read()
    except Refusal as refusal:  # the other checks use the defaults; for tracking, these would be wrong
        problem = Finding("environment", "problem", "; ".join(str(refusal).splitlines()), "correct the variable, or `unset` it")
        names = [name for name in CHECKS if name != "tracking"]
        return [problem, *examine(Context(Environment.model_construct()), names)]
    if environment.local_rank:
        return []
    return [of_environment(environment), *examine(Context(environment))]


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


Check = Callable[[Context], Finding]

LIMIT_S = 2.2
CHECKS: Mapping[str, Check] = {
    "python": packages.python,
    "lock": packages.lock,
    "extras": packages.extras,
    "torchvision": packages.torchvision,
    "driver": gpus.driver,
    "gpus": gpus.gpus,
    "precision": gpus.precision,
    "cpus": resources.cpus,
    "memory": resources.memory,
    "shared memory": resources.shared_memory,
    "disk": resources.disk,
    "inodes": resources.inodes,
    "file locks": resources.file_locks,
    "nodes": resources.nodes,
    "ownership": checkout.ownership,
    "git": checkout.git,
    "docker": resources.docker,
    "tracking": tracking.tracking,
    "dvc remote": checkout.remote,
}
"""The checks by name, in the order of the table. A name never changes: programs read it from the JSON."""
FOR_TRAINING = ("lock", "gpus", "disk", "inodes", "file locks", "ownership")
"""The checks that the command `check` runs before a training. It does not cover them itself, each takes at most some hundredths of a second,
and none needs a server."""


def examine(context: Context, names: Iterable[str] = CHECKS, *, limit_s: float = LIMIT_S) -> list[Finding]:
    """Run the checks called `names` in one thread each, and return their findings in the order of `names`, without secrets.

    A check that raises an exception, or does not end within `limit_s` seconds, gives a warning. Its thread keeps running: a call to a file
    system or a driver that hangs cannot be interrupted.
    """
    findings: dict[str, Finding] = {}
    threads = {name: threading.Thread(target=run_check, args=(name, context, findings), daemon=True) for name in names}
    end_s = time.monotonic() + limit_s
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end_s - time.monotonic()))
    address = Address.of(context.environment)
    return [redacted(findings.get(name) or unanswered(name, limit_s), address) for name in threads]


def run_check(name: str, context: Context, findings: dict[str, Finding]) -> None:
    """Run the check called `name`, and store its finding in `findings`. An exception becomes a warning."""
    try:
        findings[name] = CHECKS[name](context)
    except ModuleNotFoundError as error:
        findings[name] = Finding(name, "warning", f"not examined, because the package {error.name} is not installed", "`make setup`")
    except Exception as error:  # one check must not hide the others
        text = f"could not be examined ({shown(f'{type(error).__name__}: {error}', 160)})"
        findings[name] = Finding(name, "warning", text)


def unanswered(name: str, limit_s: float) -> Finding:
    text = f"no answer within {limit_s:.1f} s"
    return Finding(
        name, "warning", text, "run `python -m pipeline doctor` again; if this warning stays, a driver, file system or network hangs"
    )


def redacted(finding: Finding, address: Address) -> Finding:
    return Finding(finding.name, finding.status, address.redacted(finding.text), address.redacted(finding.remedy))
