"""Runs the checks at the same time, within a time limit."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from pipeline.core.untrusted import shown
from pipeline.runs.mlflow.address import Address
from pipeline.tools.doctor import checkout, gpus, packages, resources, tracking
from pipeline.tools.doctor.finding import Context, Finding, warning

Check = Callable[[Context], Finding]


LIMIT_S, LIMIT_FOR_TRAINING_S = 2.2, 10.0


CHECKS: Mapping[str, Check] = {
    "python": packages.python,
    "lock": packages.lock,
    "driver": gpus.driver,
    "gpus": gpus.gpus,
    "cpus": resources.cpus,
    "memory": resources.memory,
    "shared memory": resources.shared_memory,
    "disk": resources.disk,
    "file locks": resources.file_locks,
    "ownership": checkout.ownership,
    "git": checkout.git,
    "dvc files": checkout.dvc_files,
    "tracking": tracking.tracking,
}
"""The checks by name, in the order of the table. A name never changes: programs read it from the JSON."""


FOR_TRAINING = ("lock", "gpus", "disk", "file locks", "ownership", "dvc files")
"""The checks that the command `check` runs before a training. It does not cover them itself, each takes at most some hundredths of a second,
and none needs a server."""


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
        f"no answer within {limit_s:.1f} s",
        "run `python -m pipeline doctor` again; if this warning stays, a driver, file system or network hangs",
    )
    found = {name: findings.get(name) or unanswered for name in threads}
    return [Finding(one.status, address.redacted(one.text), address.redacted(one.remedy), name) for name, one in found.items()]


def run(name: str, context: Context, findings: dict[str, Finding]) -> None:
    """Run the check called `name`, and store its finding in `findings`. An exception becomes a warning."""
    try:
        findings[name] = CHECKS[name](context)
    except ModuleNotFoundError as error:
        findings[name] = warning(f"not examined, because the package {error.name} is not installed", "`make setup`")
    except Exception as error:  # one check must not hide the others
        findings[name] = warning(f"could not be examined ({shown(f'{type(error).__name__}: {error}', 160)})")
