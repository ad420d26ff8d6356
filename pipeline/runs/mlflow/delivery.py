"""Delivers a journal to its MLflow run, so that the run has each metric point exactly once."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runs import events
from pipeline.runs.events import EVENTS, SYSTEM, Cursor, Event
from pipeline.runs.journal import COPIES, MODEL, exclusive, is_written
from pipeline.runs.mlflow.sender import Sender
from pipeline.runs.mlflow.store import PARENT_TAG, Store, failure, is_temporary
from pipeline.runs.record import Record

if TYPE_CHECKING:
    from mlflow.entities import Run

REFUSED, DELAYED = "pipeline.refused", "pipeline.delayed"
EVENTS_AT_ONCE = 250
RETRY_AFTER_S = 120.0  # doubles with each retry, because all events after the failed one are sent again
REMOVED = f"{COPIES}.removed"


class Delivery:
    """Sends one journal to one MLflow store. It begins at the position that `delivered.json` has saved for this store.

    If MLflow rejects an event, the event is left out. If MLflow is reachable but temporarily fails to store an event, the later events are
    sent nevertheless, and the saved position stays before the failed event. All events from the failed one on are sent again in the next
    delivery, or in this one: after `RETRY_AFTER_S` seconds at first, and after twice the time at each further retry.

    Sending an event twice is safe. Metric points keep the timestamps that they have in the journal, so MLflow ignores repeated points.
    Repeated tags and files replace the earlier ones.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        """Read the position that is saved for the MLflow store `store` in the journal `folder`."""
        self._folder = folder
        self._store = store
        self._cursor = Cursor.load(folder, store.address.key)
        self._positions = dict(self._cursor.offsets)
        self._run: Run | None = None
        self._parent: str | None = None
        self._has_ended = self._cursor.has_ended
        self._cursor.has_failed = False
        self._failure_s = 0.0
        self._retry_after_s = RETRY_AFTER_S
        self._has_metrics = False
        self.stage = ""
        """The stage of the last event `start` or `reopen` that this delivery has sent; "" if it has sent none."""

    @property
    def is_delayed(self) -> bool:
        """True if MLflow temporarily failed to store an event, which will be sent again."""
        return self._cursor.has_failed

    def catch_up(self) -> bool:
        """Send all events that this delivery has not sent yet. Return True if the stage has exited and MLflow has the whole run.

        If the stage exited without an `end` event, the run gets the status KILLED. Raises MLflow's exception if MLflow is unreachable,
        Refusal for an unusable SQLite file, and BlockingIOError if a stage reopened the journal meanwhile.
        """
        # Check for a writing stage before reading: otherwise events that it appends just before it exits would be missed.
        has_writer = is_written(self._folder)
        if self._cursor.has_failed and time.monotonic() > self._failure_s + self._retry_after_s:
            self._positions, self._cursor.has_failed = dict(self._cursor.offsets), False
            self._retry_after_s *= 2
        if self._run is None:
            self._run = self._find_run()
        sender = Sender(self._store.client, self._run.info.run_id, self._folder)
        self._send_new(EVENTS, sender)
        # MLflow's comparison of runs begins with the metric that was logged first, and this should not be a system metric.
        if self._has_metrics or not has_writer:
            self._send_new(SYSTEM, sender)
        if has_writer:
            return False
        self._finish(self._run)
        return self._cursor.is_complete(self._folder)

    def _find_run(self) -> "Run":
        """Return the journal's run in MLflow.

        If this is not the run that was saved, because that run was deleted or none was saved yet, go to the beginning of the journal. Then
        save the id of the run and this position.
        """
        start = Record(self._folder).first
        self._parent = start.get("tags", {}).get(PARENT_TAG)
        run = self._store.run_for(self._folder.name, start, self._cursor.run_id)
        if run.info.run_id != self._cursor.run_id:
            self._cursor = Cursor(run.info.run_id, str(run.info.experiment_id))
            self._positions = dict(self._cursor.offsets)
            self._cursor.save(self._folder, self._store.address.key)
        return run

    def _send_new(self, name: str, sender: Sender) -> None:
        """Send the new lines of the journal's file `name`. Raises MLflow's exceptions.

        Only lines that fsync has put on disk are sent. Otherwise a power cut could remove a line that was already sent. The resumed training
        would write it again with another timestamp, and MLflow would have a second metric point.
        """
        for batch in batches(events.read_durable(self._folder / name, self._positions[name])):
            self._send(batch, sender)
            self._advance(name, batch[-1])

    def _send(self, batch: list[Event], sender: Sender) -> None:
        """Send a batch of events. If MLflow rejects a batch of several events, send each of its events alone.

        If MLflow rejects a single event, leave it out, and set the run's tag `pipeline.refused` to the reason. If MLflow temporarily fails
        to store a batch, set the tag `pipeline.delayed` to the reason: the batch is sent again later. If the tag cannot be set, MLflow is
        unreachable. Raises the exception of this attempt to set the tag.
        """
        try:
            sender.send(batch)
        except Exception as error:
            is_delayed = is_temporary(error)
            if len(batch) > 1 and not is_delayed:
                for event in batch:
                    self._send([event], sender)
                return
            reason = self._store.address.redacted(f"{batch[0].kind}: {failure(error)}")[:500]
            consequence = "will be sent again" if is_delayed else "is left out, because MLflow rejects it"
            print(f"tracking: {self._folder.name}: an event {consequence}: {reason}", flush=True)
            sender.tag({DELAYED if is_delayed else REFUSED: reason})
            if is_delayed and not self._cursor.has_failed:
                self._cursor.has_failed, self._failure_s = True, time.monotonic()

    def _advance(self, name: str, last: Event) -> None:
        """Set the position in the file `name` to the end of the event `last`, and save the position if no event before it has failed."""
        self._positions[name] = last.end
        if name == EVENTS:
            self._has_ended, self._cursor.has_ended = last.kind == "end", False
            self._cursor.time_ms = last.time_ms
            self._has_metrics |= last.kind == "metrics"
        # Only `_finish` saves the position after the `end` event.
        if not self._cursor.has_failed and last.kind != "end":
            self._cursor.offsets[name] = last.end
        self._cursor.save(self._folder, self._store.address.key)
        if last.kind in ("start", "reopen"):
            self.stage = last.fields["stage"]
        if last.kind == "start":
            self._update_comparison()
            self._join_parent()

    def _finish(self, run: "Run") -> None:
        """Finish the delivery after the stage has exited. If there was no `end` event, set the run's status to KILLED.

        Also update the experiment's comparison of runs (`comparison_view`). If no event has failed, then remove the tag `pipeline.delayed`
        and the journal's copies of files, and only after that save that the run is complete. If this process is killed earlier, the next
        delivery does all of this again.
        """
        client, run_id = self._store.client, run.info.run_id
        if not self._has_ended:
            client.set_terminated(run_id, "KILLED", end_time=self._cursor.time_ms)
        self._update_comparison()
        self._join_parent()
        if self._cursor.has_failed:
            return
        if DELAYED in run.data.tags:
            client.delete_tag(run_id, DELAYED)
        if self._remove_copies():
            self._cursor.offsets, self._cursor.has_ended = dict(self._positions), True
            self._cursor.save(self._folder, self._store.address.key)

    def _join_parent(self) -> None:
        """Make the run a child of its parent run, if its journal names one and MLflow has it: at the start, or else at the end."""
        if self._parent and self._run:
            self._store.make_child(self._run, self._parent)

    def _remove_copies(self) -> bool:
        """Remove the journal's copies of the model and other files, and return True. If the journal has unsent events, return False instead.

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
        """Update the view in the MLflow UI that compares the runs of the experiment (`comparison_view`).

        If this fails, only print the error: the next run updates the view again. If the file was deleted, do nothing.
        """
        try:
            from pipeline.runs.mlflow import comparison_view  # late: no delivery depends on the private keys of this file
        except ImportError:
            return
        try:
            comparison_view.update(self._store.client, str(self._cursor.experiment_id))
        except Exception as error:  # whatever MLflow raises
            print(
                f"tracking: the comparison of runs in MLflow was not updated; the next run updates it: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )


def batches(lines: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield the events in batches: up to `EVENTS_AT_ONCE` consecutive events of the kind `metrics`, or one event of another kind."""
    batch: list[Event] = []
    for line in lines:
        if batch and not (batch[-1].kind == line.kind == "metrics" and len(batch) < EVENTS_AT_ONCE):
            yield batch
            batch = []
        batch.append(line)
    if batch:
        yield batch
