"""The mirror process, `python -m pipeline sync --follow JOURNAL`. A stage starts it to deliver its journal.

Whoever comes last waits for it: the last stage, or the command `summary`.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.core.untrusted import shown
from pipeline.runs import events, journal
from pipeline.runs.events import Cursor, is_pending
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.store import unused_run_message

KILLED_WAIT_S = 5.0
POLL_S = 0.1
STARTED: "list[subprocess.Popen[bytes]]" = []
"""Refers to the mirror processes of this stage, because Python warns if a process still runs when the last reference to it is gone."""
CHECKOUT = Path(__file__).resolve().parents[3]
LOG = "mirror.log"
MESSAGE = "tracking: "
LONGEST_ERROR = 300
MOST_LISTED = 5
NICENESS = 19  # if all cores are busy, the mirror then takes 1/60 of a core from the training; at niceness 10 it would take 1/10


def say(environment: Environment, sentence: str) -> None:
    """Print a sentence to stderr as one line, with secrets replaced by `***`. If stderr is broken or closed, do nothing."""
    with contextlib.suppress(OSError, ValueError):  # a broken pipe, a closed stream
        print(Address.of(environment).redacted(f"{MESSAGE}{sentence}").replace("\n", " "), file=sys.stderr, flush=True)


def say_failure(environment: Environment, consequence: str, error: Exception) -> None:
    """Print in one line what follows from a failure of tracking, and the exception."""
    say(environment, f"{consequence}: {type(error).__name__}: {error}")


def command(folder: Path) -> list[str]:
    """Return the command of the mirror process for the journal in `folder`."""
    return [sys.executable, "-m", "pipeline", "sync", "--follow", str(folder)]


def start(folder: Path, environment: Environment) -> subprocess.Popen[bytes] | None:
    """Start the mirror process, which sends the journal in `folder` to MLflow while the stage runs.

    If MLflow is not installed, print a message and return None.
    """
    if importlib.util.find_spec("mlflow") is None:
        say(
            environment,
            f"MLflow is not installed: run {folder.name} is only in its journal; install MLflow and run `python -m pipeline sync`",
        )
        return None
    variables = {
        **os.environ,
        "DVC_ROOT": str(environment.root.resolve()),  # the mirror runs in the checkout, not in the working directory of the stage
        "CUDA_VISIBLE_DEVICES": "",  # no CUDA context: it would take GPU memory from the training
        "OMP_NUM_THREADS": "1",
    }
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            command(folder.resolve()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=CHECKOUT, env=variables, start_new_session=True
        )
    STARTED.append(process)
    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    return process


def poll(is_over: Callable[[], bool], seconds: float) -> bool:
    """Wait until `is_over` returns True, but at most so many seconds. Return whether it is over."""
    end_s = time.monotonic() + seconds
    while not is_over():
        if time.monotonic() >= end_s:
            return False
        time.sleep(POLL_S)
    return True


def wait(process: "subprocess.Popen[bytes] | None", folder: Path, environment: Environment) -> None:
    """Wait until MLflow has the whole journal in `folder`, until no mirror process sends it any more, or for PIPELINE_TRACKING_WAIT_S seconds.

    `process` is the mirror process that this stage has started, if it has. It is killed if MLflow does not have the journal then. Call
    `report` at the end.
    """
    store = Address.of(environment).key

    def is_complete() -> bool:
        return Cursor.load(folder, store).is_complete(folder)

    def is_abandoned() -> bool:
        return not journal.is_mirrored(folder) and (process is None or process.poll() is not None)

    poll(lambda: is_complete() or is_abandoned(), environment.tracking_wait_s)
    if process and not is_complete():
        process.kill()  # safe at any time: the next delivery resumes at the cursor in `delivered.json`
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process can hang in the kernel, such as on a dead network file system
            process.wait(KILLED_WAIT_S)
    report(folder, environment)


def wait_for_start(process: "subprocess.Popen[bytes] | None", folder: Path, environment: Environment) -> None:
    """Wait until a mirror process holds the lock of the journal in `folder`: before that, `wait_for_all` cannot see the one just started.

    Return at once if there is no such `process`, and as soon as it has ended.
    """
    poll(lambda: not process or process.poll() is not None or journal.is_mirrored(folder), environment.tracking_wait_s)


def wait_for_all(environment: Environment) -> None:
    """Wait until no mirror process sends a journal of a stage that has ended, at most PIPELINE_TRACKING_WAIT_S seconds."""
    end_s = time.monotonic() + environment.tracking_wait_s
    for folder in journal.journals(environment.root):
        with contextlib.suppress(OSError):  # a journal of another user, or one that is being deleted
            while time.monotonic() < end_s and is_pending(folder) and journal.is_mirrored(folder) and not journal.is_written(folder):
                time.sleep(POLL_S)


def report(folder: Path, environment: Environment) -> None:
    """Print how many events of the journal in `folder` are not in MLflow yet, if there are any, and the last error of its mirror process.

    As for `sync`, a run is delivered once one store has all of it (`is_pending`); if that is not the configured one, print this.

    If the user set MLFLOW_RUN_ID but the journal was sent to another run, print the ids of both.
    """
    cursor, named = Cursor.load(folder, Address.of(environment).key), environment.mlflow_run_id
    if named and cursor.run_id and cursor.run_id != named:
        say(environment, unused_run_message(named, folder.name, cursor.run_id))
    if lost := lost_message(folder, cursor):
        say(environment, f"run {folder.name}: {lost}")
    if is_pending(folder):
        num_left = len(cursor.delayed) + sum(1 for name, offset in cursor.offsets.items() for _ in events.read(folder / name, offset))
        reason = f". The last error in {folder / LOG}: {error}" if (error := last_error(folder)) else f" (its log is {folder / LOG})"
        say(
            environment,
            f"{num_left} events of run {folder.name} are not in MLflow yet: `python -m pipeline sync` delivers them{reason}",
        )
    elif not cursor.is_complete(folder):
        say(environment, f"run {folder.name} is already in another MLflow store, and is not sent to a second one")


def lost_message(folder: Path, cursor: Cursor) -> str:
    """Return what MLflow refuses of the journal in `folder`, with the reasons, and if its run was deleted there; "" if nothing."""
    refused = [f"{what}: {reason}" for what, reason in cursor.refused.items()]
    more = f"; and {len(refused) - MOST_LISTED} more, which are in {folder / events.DELIVERED}" if len(refused) > MOST_LISTED else ""
    deleted = f"its run {cursor.replaced} in MLflow was deleted: it was sent again, as {cursor.run_id}. " if cursor.replaced else ""
    return deleted + (f"left out in MLflow: {'; '.join(refused[:MOST_LISTED])}{more}" if refused else "")


def last_error(folder: Path) -> str:
    """Return the last message of the mirror process of the journal in `folder`; "" if there is none."""
    with contextlib.suppress(OSError):
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        messages = [line.removeprefix(MESSAGE) for line in lines if line.startswith(MESSAGE)]
        return shown(messages[-1], LONGEST_ERROR) if messages else ""
    return ""
