"""Delivers journals to MLflow: all of them once, or that of a running stage until it ends, so that the training never waits for MLflow."""

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
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
POLL_S, DELIVER_EVERY_S, LONGEST_PAUSE_S = 0.2, 1.0, 15.0  # each delivery fsyncs files, so once a second is often enough
LAST_ATTEMPTS = 3
HANGING_S = 5.0
OTHERS_S = 10.0


class Outcome(StrEnum):
    """The outcome of one delivery, as `sync` prints it."""

    DELIVERED = "delivered"
    RUNNING = "delivered so far: its stage is still running"
    INCOMPLETE = "delivered except for events that MLflow fails to accept: the run's tag `pipeline.delayed` has the reason"
    BUSY = "another process is delivering it"


def sync(environment: Environment, build: Build) -> int:
    """Deliver all undelivered journals and print one line for each. Return how many remain undelivered."""
    pending = [folder for folder in journal.journals(environment.root) if is_pending(folder)]
    if not pending:
        print("tracking: nothing is left to deliver: each run is in a store, and goes to no second one")
        return 0
    if importlib.util.find_spec("mlflow") is None:
        print(f"tracking: MLflow is not installed: {len(pending)} runs stay in the journal")
        return len(pending)
    store = Store(environment)
    with redacted_output(store.address):
        return len(pending) - sum(deliveries(pending, store, build))


def follow(folder: Path, environment: Environment, build: Build) -> int:
    """Deliver a journal until its writer has exited and all is delivered. Return 0, or 1 when events are left.

    Meanwhile, and for `OTHERS_S` seconds afterwards, deliver the journals that earlier runs left.
    """
    store = Store(environment)
    others = (each for each in journal.journals(environment.root) if each != folder and is_pending(each) and not journal.is_written(each))
    left_by_others = deliveries(others, store, build)
    with redacted_output(store.address), files.locked(folder / MIRROR_LOCK, wait=True):
        sampler = Sampler(folder)
        sampler.start()  # before importing MLflow, which takes longer than a short training
        follow_writer(folder, store, build, left_by_others)
        sampler.stop()
        if not finish(folder, store, build):
            return 1
        end_s = time.monotonic() + OTHERS_S
        while time.monotonic() < end_s and next(left_by_others, None) is not None:
            continue
    return 0


def follow_writer(folder: Path, store: Store, build: Build, others: Iterator[bool]) -> None:
    """Deliver a journal until its writer exits. While MLflow is unreachable, try again with growing pauses."""
    delivery = Delivery(folder, store, build)
    failures = 0
    while journal.is_written(folder):
        try:
            delivery.catch_up()
            next(others, None)
            failures = 0
        except Exception as error:  # whatever MLflow raises
            failures += 1
            if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, ...: a server that is down for days must not fill the disk
                complain(failures, error)
            delivery = Delivery(folder, store, build)  # the run may have been deleted: look it up again
        pause_end_s = time.monotonic() + min(DELIVER_EVERY_S * 2**failures, LONGEST_PAUSE_S)
        while time.monotonic() < pause_end_s and journal.is_written(folder):
            time.sleep(POLL_S)


def finish(folder: Path, store: Store, build: Build) -> bool:
    """Deliver the rest after the writer has exited, in `LAST_ATTEMPTS` attempts, and none after one that hung. Return True if all is done."""
    for attempt in range(1, LAST_ATTEMPTS + 1):
        begin_s = time.monotonic()
        try:
            if Delivery(folder, store, build).catch_up():
                return True
        except Exception as error:  # whatever MLflow raises
            complain(attempt, error)
            if time.monotonic() - begin_s > HANGING_S:
                return False
        if attempt < LAST_ATTEMPTS:
            time.sleep(DELIVER_EVERY_S)
    return False


def complain(attempt: int, error: Exception) -> None:
    print(f"tracking: attempt {attempt}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def deliveries(folders: Iterable[Path], store: Store, build: Build) -> Iterator[bool]:
    """Deliver one journal per iteration, print the outcome, and yield True if all of it is delivered. Stop when MLflow is unreachable."""
    for folder in folders:
        try:
            outcome = deliver(folder, store, build)
        except Exception as error:  # the cursor stays, so the next attempt resumes there
            print(f"tracking: {folder.name}: not delivered: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if not store.answers():
                return
            yield False
        else:
            print(f"tracking: {folder.name}: {outcome}", flush=True)
            yield outcome is Outcome.DELIVERED


def deliver(folder: Path, store: Store, build: Build) -> Outcome:
    """Deliver the current events of a journal. Raises MLflow's exception when it is unreachable."""
    with files.locked(folder / MIRROR_LOCK, wait=False) as taken:
        if not taken:
            return Outcome.BUSY
        if Delivery(folder, store, build).catch_up():
            return Outcome.DELIVERED
    return Outcome.RUNNING if journal.is_written(folder) else Outcome.INCOMPLETE
