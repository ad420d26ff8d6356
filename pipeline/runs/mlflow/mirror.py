"""Delivers journals to MLflow: that of a running stage by a mirror process, so that a training never waits for MLflow, and all others by `sync`.

A stage starts the mirror process, `python -m pipeline sync --follow JOURNAL`. Whoever comes last waits for it: the last stage, or the command
`summary`. Importing MLflow takes seconds of a core, so the mirror imports it only when the steps of a short training are over.
"""

import contextlib
import gc
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.untrusted import shown
from pipeline.runs import journal
from pipeline.runs.events import Cursor, is_pending
from pipeline.runs.mlflow.address import PREFIX, Address, redacted_output
from pipeline.runs.mlflow.delivery import Delivery
from pipeline.runs.mlflow.store import Store, failure
from pipeline.runs.record import EVALUATE, Record
from pipeline.runs.utilization import Sampler

START_AFTER_S = 30.0
EVALUATED_WITHIN_S = 30.0
LAST_ATTEMPTS_S = 3.0
"""After the end of a stage, attempts begin within this time: a stage that adds to the journal for a moment, such as `evaluate`, ends a delivery."""
DELIVER_EVERY_S, LONGEST_PAUSE_S = 1.0, 15.0  # each delivery calls fsync, so at most one per second
POLL_S, KILLED_WAIT_S = 0.1, 5.0
STARTED: "list[subprocess.Popen[bytes]]" = []
"""Refers to the mirror processes of this stage, because Python warns if a process still runs when the last reference to it is gone."""
CHECKOUT = Path(__file__).resolve().parents[3]
LOG = "mirror.log"
LONGEST_ERROR, LONGEST_LIST = 300, 3000
NICENESS = 19  # if all cores are busy, the mirror then takes 1/60 of a core from the training; at niceness 10 it would take 1/10


def command(folder: Path) -> list[str]:
    """Return the command of the mirror process for the journal in `folder`."""
    return [sys.executable, "-m", "pipeline", "sync", "--follow", str(folder)]


def start(folder: Path, environment: Environment) -> "subprocess.Popen[bytes]":
    """Start the mirror process, which sends the journal in `folder` to MLflow while the stage runs."""
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


def wait_for_start(process: "subprocess.Popen[bytes]", folder: Path, environment: Environment) -> None:
    """Wait until the mirror `process` holds the lock of the journal in `folder`, or has ended: before that, `wait` cannot see it."""
    poll(lambda: process.poll() is not None or journal.is_mirrored(folder), environment.tracking_wait_s)


def wait(environment: Environment, *folders: Path) -> None:
    """Wait for the mirrors of the journals in `folders`, or of all journals if none is named, at most PIPELINE_TRACKING_WAIT_S seconds."""
    end_s = time.monotonic() + environment.tracking_wait_s
    for folder in folders or journal.journals(environment.root):
        with contextlib.suppress(OSError):  # a journal of another user, or one that is being deleted
            poll(partial(is_idle, folder), end_s - time.monotonic())


def stop(process: "subprocess.Popen[bytes] | None") -> None:
    """Kill the mirror that this stage has started, if it still runs. This is safe at any time: the next delivery begins at the saved position."""
    if process and process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process can hang in the kernel, such as on a dead network file system
            process.wait(KILLED_WAIT_S)


def is_idle(folder: Path) -> bool:
    """Return True if MLflow has the journal in `folder`, or if no mirror sends it, or if its stage is still running."""
    return not (is_pending(folder) and journal.is_mirrored(folder)) or journal.is_written(folder)


def report(folder: Path, environment: Environment) -> None:
    """Print what MLflow does not have of the journal in `folder`, and the last error of its mirror process.

    As for `sync`, a run is delivered once one store has all of it (`is_pending`). If the user set MLFLOW_RUN_ID, print which run has the
    journal instead.
    """
    address = Address.of(environment)
    cursor = Cursor.load(folder, address.key)
    if environment.mlflow_run_id:
        run_id = cursor.run_id or "none yet"
        address.say(f"MLFLOW_RUN_ID is not used, because each training is a run of its own: that of {folder.name} is {run_id}", failed=True)
    if lost := lost_message(cursor):
        address.say(f"run {folder.name}: {lost}", failed=True)
    if is_pending(folder):
        remedy = f"`python -m pipeline sync` delivers the rest. The last error in {folder / LOG}: {last_error(folder)}"
        address.say(f"run {folder.name} is not completely in MLflow yet: {remedy}", failed=True)


def lost_message(cursor: Cursor) -> str:
    """Return what MLflow refuses of a journal, with the reasons, and if its run was deleted there; "" if nothing."""
    deleted = f"its run {cursor.replaced} in MLflow was deleted: it was sent again, as {cursor.run_id}. " if cursor.replaced else ""
    refused = shown("; ".join(map(": ".join, cursor.refused.items())), LONGEST_LIST)
    return deleted + (f"left out in MLflow: {refused}" if refused else "")


def last_error(folder: Path) -> str:
    """Return the last message of the mirror process of the journal in `folder`; "none" if there is none."""
    log = folder / LOG
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    messages = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    return shown(messages[-1], LONGEST_ERROR) if messages else "none"


def sync(environment: Environment) -> int:
    """Deliver all journals that are not completely in MLflow, and print one line for each. Return how many are still incomplete there.

    First wait, with a time limit, for the mirrors that stages have left.
    """
    wait(environment)
    store = Store(environment)
    pending = [folder for folder in journal.journals(environment.root) if is_pending(folder)]
    if not pending:
        store.address.say("nothing to deliver: every run of this checkout is in an MLflow store, and is not sent to another one")
    num_left = len(pending)
    with redacted_output(store.address):
        for folder in pending:
            try:
                num_left -= deliver(folder, store)
            except Exception as error:  # whatever MLflow raises; the next delivery begins at the saved position
                store.address.say(f"{folder.name}: not delivered: {failure(error)}", failed=True)
                if not store.is_reachable():
                    break
    return num_left


def deliver(folder: Path, store: Store) -> bool:
    """Deliver the events that a journal has now, and print the outcome. Return True if its stage has exited and MLflow has all events.

    If another process is delivering the journal, print that and return False. Raises the exceptions of `Delivery.catch_up`.
    """
    with files.locked(folder / journal.MIRROR_LOCK, wait=False) as taken:
        is_complete = taken and Delivery(folder, store).catch_up()
    if taken:
        store.address.say(f"{folder.name}: {'delivered' if is_complete else 'delivered so far: its stage is still running'}")
        if lost := lost_message(Cursor.load(folder, store.address.key)):
            store.address.say(f"{folder.name}: {lost}")
    else:
        store.address.say(f"{folder.name}: is being delivered by another process")
    return is_complete


def follow(folder: Path, environment: Environment) -> int:
    """Send the journal of a running stage to MLflow until the stage has exited and MLflow has all events. Return 1 if this fails, else 0.

    If DVC runs the stage `train`, then also send what `evaluate` adds to the journal within `EVALUATED_WITHIN_S` seconds.
    """
    gc.set_threshold(100_000, 50, 100)  # Python's default rule costs a fourth of the time in which MLflow is imported and its store created
    store = Store(environment)
    evaluated_within_s = EVALUATED_WITHIN_S if environment.dvc_stage == "train" else 0.0
    with redacted_output(store.address):
        # a stage that found the lock taken relies on this process, also if it opened the journal after the last delivery
        while not Cursor.load(folder, store.address.key).is_complete(folder):
            with files.locked(folder / journal.MIRROR_LOCK, wait=True):
                if not deliver_stages(folder, store, evaluated_within_s):
                    return 1
    return 0


def deliver_stages(folder: Path, store: Store, evaluated_within_s: float) -> bool:
    """Send a journal until the stage has exited and MLflow has all events, and record system metrics as long as the stage runs.

    Then wait `evaluated_within_s` seconds for another stage, or the same one resumed, to add to the journal, and do the same for it. While a
    stage runs, and for LAST_ATTEMPTS_S after its end, a delivery that fails is tried again. Return False if the last attempt fails.
    """
    delivery, num_failures, pause_s = Delivery(folder, store), 0, START_AFTER_S

    def has_more() -> bool:
        return not delivery.cursor.is_complete(folder)

    while True:
        sampler = Sampler(folder)
        sampler.start()
        is_over, end_s = False, math.inf
        while not is_over:
            is_over = poll(lambda: not journal.is_written(folder), pause_s)
            if is_over and end_s == math.inf:
                sampler.stop()
                end_s = time.monotonic() + LAST_ATTEMPTS_S
            try:
                delivery.catch_up()
                num_failures = 0
            except Exception as error:  # whatever MLflow raises
                num_failures += 1
                if num_failures & (num_failures - 1) == 0:  # the 1st, 2nd, 4th, ...: a server that is down for days must not fill the disk
                    store.address.say(f"delivery attempt {num_failures} failed: {failure(error)}", failed=True)
                if time.monotonic() > end_s and not journal.is_written(folder):
                    return False
                delivery = Delivery(folder, store)  # look up the run again: it may have been deleted
                if is_over:
                    is_over = poll(lambda: journal.is_written(folder), DELIVER_EVERY_S)
            pause_s = min(DELIVER_EVERY_S * 2**num_failures, LONGEST_PAUSE_S)
        is_evaluated = [fields["stage"] for fields in Record(folder).begun][-1:] == [EVALUATE]
        if not has_more() and (is_evaluated or not poll(has_more, evaluated_within_s)):
            return True
