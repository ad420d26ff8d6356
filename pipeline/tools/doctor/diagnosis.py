"""Runs the checks at the same time, within a time limit."""

import threading
import time
from collections.abc import Iterable

from pipeline.core.untrusted import shown
from pipeline.runs.mlflow.address import Address
from pipeline.tools.doctor.checks import CHECKS, Context, Finding, warning

LIMIT_S, LIMIT_FOR_TRAINING_S = 2.2, 10.0


def examine(context: Context, names: Iterable[str] = CHECKS, *, limit_s: float = LIMIT_S) -> list[Finding]:
    """Run the checks called `names` in one thread each, and return their findings in the order of `names`, without secrets.

    A check that raises an exception, or does not end within `limit_s` seconds, gives a warning. Its thread keeps running: a call to a file
    system or a driver that hangs cannot be interrupted.
    """
    findings: dict[str, Finding] = {}
    threads = {name: threading.Thread(target=run, args=(name, context, findings), daemon=True) for name in names}
    end_s = time.monotonic() + limit_s
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end_s - time.monotonic()))
    address = Address.of(context.environment)
    unanswered = warning(
        f"no answer within {limit_s:.1f} s", "run `python -m pipeline doctor` again; if this stays, a driver, file system or network hangs"
    )
    found = {name: findings.get(name) or unanswered for name in threads}
    return [Finding(one.status, address.redacted(one.text), address.redacted(one.remedy), name) for name, one in found.items()]


def run(name: str, context: Context, findings: dict[str, Finding]) -> None:
    """Run the check called `name`, and store its finding in `findings`. An exception becomes a warning."""
    try:
        findings[name] = CHECKS[name](context)
    except Exception as error:  # one check must not hide the others
        findings[name] = warning(f"could not be examined ({shown(f'{type(error).__name__}: {error}', 160)})")
