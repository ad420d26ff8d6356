"""Delivers a journal to its MLflow run, so that the run has each metric point exactly once."""

import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tracking import comparison_view, events
from pipeline.tracking.cursor import Cursor
from pipeline.tracking.events import EVENTS, SYSTEM, Event
from pipeline.tracking.journal import COPIES, MODEL, exclusive, is_written
from pipeline.tracking.logged_model import Build
from pipeline.tracking.mlflow_calls import Sender
from pipeline.tracking.store import Store, is_temporary

if TYPE_CHECKING:
    from mlflow.entities import Run

REFUSED, DELAYED = "pipeline.refused", "pipeline.delayed"
EVENTS_AT_ONCE = 250
PAUSE_S, LONGEST_FIRST_S = 0.5, 5.0
RETRY_AFTER_S = 120.0  # doubles with each retry, because all events after the failed one are sent again
REMOVED = f"{COPIES}.removed"


class Delivery:
    """The delivery of one journal to one store. It starts at the cursor saved in `delivered.json`.

    Every event can be sent again. The timestamps come from the journal, so MLflow ignores repeated metric points; a repeated tag or
    file replaces the earlier one. If an event fails although MLflow is reachable, the cursor therefore stays before this event, but
    the events after it are sent. The next delivery starts at the failed event and sends them again. A delivery that lasts longer than
    `RETRY_AFTER_S` seconds after a failure goes back to the failed event without waiting for the next delivery.
    """

    def __init__(self, folder: Path, store: Store, build: Build, deadline_s: float = math.inf) -> None:
        """Load the cursor. `catch_up` raises TimeoutError once `time.monotonic` exceeds `deadline_s`."""
        self._folder = folder
        self._store = store
        self._build = build
        self._deadline_s = deadline_s
        self._cursor = Cursor.load(folder, store.address.key)
        self._positions = dict(self._cursor.offsets)
        self._run: Run | None = None
        self._has_ended = self._cursor.has_ended
        self._cursor.has_failed = False
        self._failure_s = 0.0
        self._retry_after_s = RETRY_AFTER_S
        self._has_metrics = False

    def catch_up(self) -> bool:
        """Send the events that this delivery has not sent yet. Return True if the writer has exited and MLflow has the whole run.

        If the writer exited without an `end` event, the run gets the status KILLED. Raises MLflow's exception if MLflow is unreachable,
        Refusal for an unusable SQLite file, TimeoutError after the deadline, and BlockingIOError if a stage reopened the journal meanwhile.
        """
        # Check for a writer before reading: otherwise events that it appends just before it exits would be missed.
        has_writer = is_written(self._folder)
        if self._cursor.has_failed and time.monotonic() > self._failure_s + self._retry_after_s:
            self._positions, self._cursor.has_failed = dict(self._cursor.offsets), False
            self._retry_after_s *= 2
        if self._run is None:
            self._run = self._find_run()
        sender = Sender(self._store.client, self._run.info.run_id, self._folder, self._build)
        self._send_new(EVENTS, sender)
        # MLflow's comparison of runs begins with the metric that was logged first, and this should not be a system metric.
        if self._has_metrics or not has_writer:
            self._send_new(SYSTEM, sender)
        if has_writer:
            return False
        self._finish(self._run)
        return self._cursor.is_complete(self._folder)

    def _find_run(self) -> "Run":
        """Find or create the MLflow run. If it is not the run of the saved cursor, start again at the beginning of the journal."""
        first = next(events.read(self._folder / EVENTS), None)
        run = self._store.run_for(self._folder.name, first.fields if first and first.kind == "start" else {}, self._cursor.run_id)
        if run.info.run_id != self._cursor.run_id:
            self._cursor = Cursor(run.info.run_id, str(run.info.experiment_id))
            self._positions = dict(self._cursor.offsets)
            self._save()
        return run

    def _send_new(self, name: str, sender: Sender) -> None:
        """Send the new lines of one file of the journal, `events.jsonl` or `system.jsonl`.

        Only lines that fsync has put on disk are sent. Otherwise a power cut could remove a line that was already sent. The resumed training
        would write it again with another timestamp, and MLflow would have a second metric point.
        """
        for batch in batches(events.read_durable(self._folder / name, self._positions[name])):
            if time.monotonic() > self._deadline_s:
                raise TimeoutError("the time for this delivery is over: the next one resumes here")
            self._send(batch, sender)
            self._advance(name, batch[-1])

    def _send(self, batch: list[Event], sender: Sender) -> None:
        """Send a batch. If this fails, record the reason in a tag of the run.

        If MLflow rejects a batch of several events, each of its events is sent alone; a rejected event is skipped. After a temporary
        failure, the cursor stays before the batch. Raises MLflow's exception if the tag cannot be set either: MLflow is unreachable.
        """
        try:
            send_twice(sender, batch)
        except Exception as error:
            is_delayed = is_temporary(error)
            if len(batch) > 1 and not is_delayed:
                for event in batch:
                    self._send([event], sender)
                return
            reason = self._store.address.redacted(f"{batch[0].kind}: {type(error).__name__}: {error}")[:500]
            print(f"tracking: {self._folder.name}: MLflow does not accept an event: {reason}", flush=True)
            sender.tag({DELAYED if is_delayed else REFUSED: reason})
            if is_delayed and not self._cursor.has_failed:
                self._cursor.has_failed, self._failure_s = True, time.monotonic()

    def _advance(self, name: str, last: Event) -> None:
        self._positions[name] = last.end
        if name == EVENTS:
            self._has_ended, self._cursor.has_ended = last.kind == "end", False
            self._cursor.time_ms = last.time_ms
            self._has_metrics |= last.kind == "metrics"
        # Only `_finish` saves the position after the `end` event: after a kill before that, the next delivery sends `end` again and finishes.
        if not self._cursor.has_failed and last.kind != "end":
            self._cursor.offsets[name] = last.end
        self._save()
        if last.kind == "start":
            self._update_comparison()

    def _finish(self, run: "Run") -> None:
        """Set the status of a killed run, and update the comparison.

        If MLflow has the whole run, also remove the tag `pipeline.delayed` and the journal's copies of the model and other files.
        """
        client, run_id = self._store.client, run.info.run_id
        if not self._has_ended:
            client.set_terminated(run_id, "KILLED", end_time=self._cursor.time_ms)
        self._update_comparison()
        if self._cursor.has_failed:
            return
        if DELAYED in run.data.tags:
            client.delete_tag(run_id, DELAYED)
        if self._remove_copies():
            self._cursor.offsets, self._cursor.has_ended = dict(self._positions), True
            self._save()

    def _remove_copies(self) -> bool:
        """Remove the copies of the model and the files. If the journal has new events, keep them and return False.

        Raises BlockingIOError if a stage has the journal open for writing.
        """
        removed = self._folder / REMOVED
        shutil.rmtree(removed, ignore_errors=True)
        with exclusive(self._folder):
            if events.has_more(self._folder / EVENTS, self._positions[EVENTS]):
                return False
            (self._folder / MODEL).unlink(missing_ok=True)
            if (self._folder / COPIES).exists():
                (self._folder / COPIES).rename(removed)  # quick, so that a stage that opens the journal does not wait for the removal
        shutil.rmtree(removed, ignore_errors=True)
        return True

    def _update_comparison(self) -> None:
        """Add the run to the experiment's comparison. An error is only printed, because the next run updates the comparison again."""
        try:
            comparison_view.update(self._store.client, str(self._cursor.experiment_id))
        except Exception as error:  # whatever MLflow raises
            print(f"tracking: the comparison was not updated: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def _save(self) -> None:
        self._cursor.save(self._folder, self._store.address.key)


def send_twice(sender: Sender, batch: list[Event]) -> None:
    """Send a batch. After a temporary failure, such as a reset connection, send it once more.

    If the first attempt took longer than `LONGEST_FIRST_S` seconds, as a request that timed out, raise its exception instead.
    """
    begin_s = time.monotonic()
    try:
        sender.send(batch)
    except Exception as error:
        if not is_temporary(error) or time.monotonic() - begin_s > LONGEST_FIRST_S:
            raise
        time.sleep(PAUSE_S)
        sender.send(batch)


def batches(lines: Iterable[Event]) -> Iterator[list[Event]]:
    """Group events into batches: up to `EVENTS_AT_ONCE` consecutive events of kind `metrics`, or one event of another kind."""
    batch: list[Event] = []
    for line in lines:
        if batch and not (batch[-1].kind == line.kind == "metrics" and len(batch) < EVENTS_AT_ONCE):
            yield batch
            batch = []
        batch.append(line)
    if batch:
        yield batch
