"""Delivers journals to MLflow: all journals once, or the journal of a running stage until the stage ends.

The second is done by a separate process, so that a training never waits for MLflow.
"""

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.io import files
from pipeline.runtime.environment import Environment
from pipeline.tracking import journal
from pipeline.tracking.address import redacted_output
from pipeline.tracking.cursor import is_pending
from pipeline.tracking.delivery import Delivery
from pipeline.tracking.logged_model import Build
from pipeline.tracking.store import Store
from pipeline.tracking.system import Sampler

MIRROR_LOCK = "mirror.lock"
POLL_S, DELIVER_EVERY_S, LONGEST_PAUSE_S = 0.2, 1.0, 15.0  # each delivery calls fsync, so at most one per second
LAST_ATTEMPTS = 3
HANGING_S = 5.0
OTHERS_S = 10.0


def sync(environment: Environment, build: Build) -> int:
    """Deliver all journals that no store has completely, and print the outcome of each. Return how many remain undelivered."""
    pending = [folder for folder in journal.journals(environment.root) if is_pending(folder)]
    if not pending:
        print("tracking: nothing to deliver: every run is already in an MLflow store, and a run is never sent to a second store")
        return 0
    if importlib.util.find_spec("mlflow") is None:
        print(f"tracking: MLflow is not installed: {len(pending)} runs are kept in their journals")
        return len(pending)
    store = Store(environment)
    with redacted_output(store.address):
        return len(pending) - sum(deliveries(pending, store, build))


def follow(folder: Path, environment: Environment, build: Build) -> int:
    """Deliver a journal until its writer has exited and all events are delivered. Return 0, or 1 if events are left.

    Meanwhile, and for `OTHERS_S` seconds afterwards, also deliver the pending journals of earlier runs.
    """
    store = Store(environment)
    others = (each for each in journal.journals(environment.root) if each != folder and is_pending(each) and not journal.is_written(each))
    deliveries_of_others = deliveries(others, store, build)
    with redacted_output(store.address), files.locked(folder / MIRROR_LOCK, wait=True):
        sampler = Sampler(folder)
        sampler.start()  # before importing MLflow, which takes longer than a short training
        if not deliver_to_the_end(folder, store, build, sampler, meanwhile=deliveries_of_others):
            return 1
        end_s = time.monotonic() + OTHERS_S
        while time.monotonic() < end_s and next(deliveries_of_others, None) is not None:
            continue
    return 0


def deliver_to_the_end(folder: Path, store: Store, build: Build, sampler: Sampler, *, meanwhile: Iterator[bool]) -> bool:
    """Deliver a journal until its writer has exited; pauses grow while MLflow is unreachable. Return True if all events are delivered.

    After the writer has exited, make at most `LAST_ATTEMPTS` attempts, and none after an attempt that failed after more than `HANGING_S`
    seconds. After each attempt that raised nothing, advance `meanwhile` by one, which delivers one journal of an earlier run.
    """
    delivery = Delivery(folder, store, build)
    failures = last_attempts = 0
    while last_attempts < LAST_ATTEMPTS:
        begin_s = time.monotonic()
        is_written = journal.is_written(folder)
        if not is_written:
            sampler.stop()
            last_attempts += 1
            delivery = Delivery(folder, store, build)  # starts at the saved cursor, and so sends the events that failed again
        try:
            if delivery.catch_up() and not is_written:
                return True
            failures = 0
            next(meanwhile, None)
        except Exception as error:  # whatever MLflow raises
            failures += 1
            if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, ...: a server that is down for days must not fill the disk
                print(f"tracking: attempt {failures}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if time.monotonic() - begin_s > HANGING_S and not journal.is_written(folder):
                return False
            delivery = Delivery(folder, store, build)  # look up the run again: it may have been deleted
        pause_s = min(DELIVER_EVERY_S * 2**failures, LONGEST_PAUSE_S) if is_written else DELIVER_EVERY_S
        pause_end_s = time.monotonic() + pause_s
        while time.monotonic() < pause_end_s and journal.is_written(folder) == is_written:  # a pause ends early when the stage ends
            time.sleep(POLL_S)
    return False


def deliveries(folders: Iterable[Path], store: Store, build: Build) -> Iterator[bool]:
    """Deliver one journal per iteration, and yield True if MLflow has all of it, else False. Stop if MLflow is unreachable."""
    for folder in folders:
        try:
            yield deliver(folder, store, build)
        except Exception as error:  # the saved cursor is unchanged, so the next attempt resumes at it
            print(f"tracking: {folder.name}: not delivered: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if not store.is_reachable():
                return
            yield False


def deliver(folder: Path, store: Store, build: Build) -> bool:
    """Deliver the current events of a journal and print the outcome. Return True if the run has ended and MLflow has all of it.

    Raises MLflow's exception if MLflow is unreachable.
    """
    with files.locked(folder / MIRROR_LOCK, wait=False) as taken:
        is_complete = taken and Delivery(folder, store, build).catch_up()
    if is_complete:
        outcome = "delivered"
    elif not taken:
        outcome = "is being delivered by another process"
    elif journal.is_written(folder):
        outcome = "delivered so far: its stage is still running"
    else:
        outcome = "delivered, except for events that MLflow failed to store: the run's tag `pipeline.delayed` contains the reason"
    print(f"tracking: {folder.name}: {outcome}", flush=True)
    return is_complete
