"""Delivers journals to MLflow: all journals once (`sync`), or the journal of a running stage until the stage ends (`sync --follow`).

A stage starts `sync --follow` as a separate process, so that a training never waits for MLflow. Importing MLflow takes seconds of a core, so this
process imports it only when the steps of a short training are over.
"""

import gc
import importlib.util
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.runs import journal
from pipeline.runs.events import Cursor, is_pending
from pipeline.runs.mlflow import mirror_process
from pipeline.runs.mlflow.address import redacted_output
from pipeline.runs.mlflow.delivery import Delivery
from pipeline.runs.mlflow.store import Store, failure, say
from pipeline.runs.utilization import Sampler

START_AFTER_S = 30.0
EVALUATED_WITHIN_S = 30.0
DELIVER_EVERY_S, LONGEST_PAUSE_S = 1.0, 15.0  # each delivery calls fsync, so at most one per second
LAST_ATTEMPTS_S = 3.0
"""After its end, a stage waits for attempts that begin within this time. An attempt at a server that hangs takes longer, so it is the last one."""
OTHERS_S = 10.0


def sync(environment: Environment) -> int:
    """Deliver all journals that are not completely in MLflow, and print one line for each. Return how many are still incomplete there.

    First wait, with a time limit, for the mirrors that stages have left.
    """
    mirror_process.wait_for_all(environment)
    folders = journal.journals(environment.root)
    pending = [folder for folder in folders if is_pending(folder)]
    if not folders:
        say("nothing to deliver: there are no runs here")
        return 0
    if not pending:
        say("nothing to deliver: every run is already in an MLflow store, and such a run is not sent to another store")
        return 0
    if importlib.util.find_spec("mlflow") is None:
        say(f"MLflow is not installed: {len(pending)} runs are kept in their journals")
        return len(pending)
    store = Store(environment)
    with redacted_output(store.address.secrets):
        return len(pending) - sum(deliveries(pending, store))


def follow(folder: Path, environment: Environment) -> int:
    """Send the journal of a running stage to MLflow until the stage has exited and MLflow has all events. Return 1 if this fails, else 0.

    If DVC runs the stage `train`, then also send what `evaluate` adds to the journal within `EVALUATED_WITHIN_S` seconds.
    """
    gc.set_threshold(100_000, 50, 100)  # Python's default rule costs a fourth of the time in which MLflow is imported and its store created
    store = Store(environment)
    evaluated_within_s = EVALUATED_WITHIN_S if environment.dvc_stage == "train" else 0.0
    with redacted_output(store.address.secrets):
        while True:
            with files.locked(folder / journal.MIRROR_LOCK, wait=True):
                is_delivered = Mirror(folder, store).deliver_to_the_end(evaluated_within_s)
            if not is_delivered and not journal.is_written(folder):
                return 1
            # a stage that found the lock taken relies on this process, also if it opened the journal after the last delivery
            if Cursor.load(folder, store.address.key).is_complete(folder):
                return 0


class Mirror:
    """Sends the journal `folder` of a running stage to MLflow, and after the first success also journals of earlier runs."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._delivery = Delivery(folder, store)
        self._failures = 0
        self._earlier_are_due = True
        self._stage = ""

    def deliver_to_the_end(self, evaluated_within_s: float) -> bool:
        """Send the journal until the stage has exited and MLflow has all events, and record system metrics as long as the stage runs.

        Then wait `evaluated_within_s` seconds for another stage, or the same one resumed, to add to the journal, and do the same for it.
        Return False if MLflow does not have all events after the last attempts.
        """
        start_after_s = START_AFTER_S
        while True:
            sampler = Sampler(self._folder)
            sampler.start()
            pause(start_after_s, self._folder, is_written=True)
            start_after_s = 0.0
            while journal.is_written(self._folder):
                self._attempt()
                pause(min(DELIVER_EVERY_S * 2**self._failures, LONGEST_PAUSE_S), self._folder, is_written=True)
            sampler.stop()
            is_complete = self._deliver_rest()
            if journal.is_written(self._folder):
                continue
            if not is_complete:
                return False
            if self._stage == "evaluate" or not mirror_process.poll(self._is_continued, evaluated_within_s):
                return True

    def _is_continued(self) -> bool:
        """Return True if the journal, which MLflow had, has got another event."""
        return not Cursor.load(self._folder, self._store.address.key).is_complete(self._folder)

    def _deliver_rest(self) -> bool:
        """Make the attempts after the end of the stage. Return True once MLflow has all events, and False if another stage begins."""
        end_s = time.monotonic() + LAST_ATTEMPTS_S
        while not journal.is_written(self._folder):
            if self._attempt():
                return True
            if self._failures or self._delivery.cursor.delayed:  # otherwise another stage has added events meanwhile
                if time.monotonic() > end_s:
                    break
                pause(DELIVER_EVERY_S, self._folder, is_written=False)
        return False

    def _attempt(self) -> bool:
        """Send the events that the journal has now. Return True if the stage has exited and MLflow has all events."""
        try:
            is_complete = self._delivery.catch_up()
        except Exception as error:  # whatever MLflow raises
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, ...: a server that is down for days must not fill the disk
                say(f"delivery attempt {self._failures} failed: {failure(error)}", failed=True)
            self._delivery = Delivery(self._folder, self._store)  # look up the run again: it may have been deleted
            return False
        self._failures = 0
        self._stage = self._delivery.stage or self._stage
        if self._earlier_are_due:
            deliver_earlier(self._folder, self._store)
            self._earlier_are_due = False
        return is_complete


def pause(pause_s: float, folder: Path, *, is_written: bool) -> None:
    """Wait `pause_s` seconds, but only as long as `journal.is_written` returns `is_written`: a pause ends early when the stage ends."""
    mirror_process.poll(lambda: journal.is_written(folder) != is_written, pause_s)


def deliver_earlier(folder: Path, store: Store) -> None:
    """Spend up to `OTHERS_S` seconds on journals of earlier runs that are not completely in MLflow. `folder` is the journal of this run.

    Those with a file that MLflow failed to store come last.
    """
    others = [each for each in journal.journals(store.address.root) if each.name != folder.name]
    try:
        others = [each for each in others if is_pending(each) and not journal.is_written(each)]
        others.sort(key=lambda each: bool(Cursor.load(each, store.address.key).delayed))
        for _ in deliveries(others, store, time.monotonic() + OTHERS_S):
            pass
    except OSError as error:  # a journal of another user, or one that is being deleted: it must not end this delivery
        say(f"earlier runs are not delivered: {error}", failed=True)


def deliveries(folders: Iterable[Path], store: Store, deadline_s: float = math.inf) -> Iterator[bool]:
    """Deliver the journals in `folders`, one per iteration. For each, yield True if MLflow has all of it, else False.

    Stop if MLflow is unreachable, or when `time.monotonic()` exceeds `deadline_s`.
    """
    for folder in folders:
        if time.monotonic() > deadline_s:
            return
        try:
            yield deliver(folder, store)
        except Exception as error:  # the cursor stays, so the next attempt resumes there
            say(f"{folder.name}: not delivered: {failure(error)}", failed=True)
            if not store.is_reachable():
                return
            yield False


def deliver(folder: Path, store: Store) -> bool:
    """Deliver the events that a journal has now, and print the outcome. Return True if its stage has exited and MLflow has all events.

    If another process is delivering the journal, print that and return False. Raises the exceptions of `Delivery.catch_up`.
    """
    with files.locked(folder / journal.MIRROR_LOCK, wait=False) as taken:
        is_complete = taken and Delivery(folder, store).catch_up()
    if is_complete:
        outcome = "delivered"
    elif not taken:
        outcome = "is being delivered by another process"
    elif journal.is_written(folder):
        outcome = "delivered so far: its stage is still running"
    else:
        outcome = "delivered, except for files that MLflow failed to store: the run's tag `pipeline.delayed` contains the reason"
    say(f"{folder.name}: {outcome}")
    if taken and (lost := mirror_process.lost_message(folder, Cursor.load(folder, store.address.key))):
        say(f"{folder.name}: {lost}")
    return is_complete
