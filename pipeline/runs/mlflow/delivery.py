"""Delivers a journal to its MLflow run, so that the run has each metric point exactly once."""

import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runs import events
from pipeline.runs.events import EVENTS, SYSTEM, Cursor, Event
from pipeline.runs.journal import COPIES, MODEL, exclusive, is_written
from pipeline.runs.mlflow.sender import LONGEST_REASON, Sender
from pipeline.runs.mlflow.store import PARENT_TAG, Store, failure, say
from pipeline.runs.record import Record

if TYPE_CHECKING:
    from mlflow.entities import Run

DELAYED = "pipeline.delayed"
EVENTS_AT_ONCE = 250
REMOVED = f"{COPIES}.removed"
RETRY_AFTER_S = 120.0  # doubles with each retry, because all events after the failed one are sent again


class Delivery:
    """Sends one journal to one MLflow store. It begins at the position that `delivered.json` has saved for this store.

    What MLflow refuses of an event is left out. If MLflow is reachable but temporarily fails to store an event, the later events are
    sent nevertheless, and the saved position stays before the failed event. All events from the failed one on are sent again in the next
    delivery, or in this one: after `RETRY_AFTER_S` seconds at first, and after twice the time at each further retry.

    Sending an event twice is safe. Metric points keep the timestamps that they have in the journal, so those that MLflow has are known.
    Repeated tags and files replace the earlier ones.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        """Read the position that is saved for the MLflow store `store` in the journal `folder`."""
        self._folder = folder
        self._store = store
        self.cursor = Cursor.load(folder, store.address.key)
        self._positions = dict(self.cursor.offsets)
        self._has_ended = self.cursor.has_ended
        self.cursor.has_failed = False
        self._retry_at_s, self._retry_after_s = math.inf, RETRY_AFTER_S
        self._has_metrics = False
        self._run: Run | None = None
        self._sender: Sender
        self.stage = ""
        """The stage of the last event `start` or `reopen` that this delivery has sent; "" if it has sent none."""

    def catch_up(self) -> bool:
        """Send all events that this delivery has not sent yet. Return True if the stage has exited and MLflow has the whole run.

        If the stage exited without an `end` event, the run gets the status KILLED. Raises MLflow's exception if MLflow is unreachable,
        Refusal for an unusable SQLite file, and BlockingIOError if a stage reopened the journal meanwhile.
        """
        # Check for a writing stage before reading: otherwise events that it appends just before it exits would be missed.
        has_writer = is_written(self._folder)
        if time.monotonic() > self._retry_at_s:
            self._positions, self.cursor.has_failed, self._retry_at_s = dict(self.cursor.offsets), False, math.inf
            self._run = None
        if self._run is None:
            self._run = self._find_run()
            self._sender = Sender(self._store, self._run.info.run_id, self._folder, self.cursor.refused)
        self._send_new(EVENTS)
        # MLflow's comparison of runs begins with the metric that was logged first, and this should not be a system metric.
        if self._has_metrics or not has_writer:
            self._send_new(SYSTEM)
        if has_writer:
            return False
        self._finish(self._run)
        return self.cursor.is_complete(self._folder)

    def _find_run(self) -> "Run":
        """Return the journal's run in MLflow.

        If this is not the run that was saved, because that run was deleted or none was saved yet, go to the beginning of the journal. Then
        save the id of the run and this position.
        """
        run = self._store.run_for(self._folder.name, self._start, self.cursor.run_id)
        if run.info.run_id != self.cursor.run_id:
            self.cursor = Cursor(run.info.run_id, str(run.info.experiment_id), replaced=self.cursor.run_id)
            self._positions = dict(self.cursor.offsets)
            self.cursor.save(self._folder, self._store.address.key)
        return run

    @property
    def _start(self) -> Mapping[str, Any]:
        """Return the fields of the journal's first event."""
        return Record(self._folder).first

    def _send_new(self, name: str) -> None:
        """Send the new lines of the journal's file `name`. After each batch, set the position in the file, and save it if no event before it
        has failed. Raises MLflow's exceptions.

        Only lines that fsync has put on disk are sent. Otherwise a power cut could remove a line that was already sent. The resumed training
        would write it again with another timestamp, and MLflow would have a second metric point.
        """
        for batch in batches(events.read_durable(self._folder / name, self._positions[name])):
            self._send(batch)
            last = batch[-1]
            self._positions[name] = last.end
            if name == EVENTS:
                self._has_ended, self.cursor.has_ended = last.kind == "end", False
                self.cursor.time_ms = last.time_ms
                self._has_metrics |= last.kind == "metrics"
            # Only `_finish` saves the position after the `end` event.
            if not self.cursor.has_failed and last.kind != "end":
                self.cursor.offsets[name] = last.end
            self.cursor.save(self._folder, self._store.address.key)
            if last.kind in ("start", "reopen"):
                self.stage = last.fields["stage"]
            if last.kind == "start":
                self._place()

    def _send(self, batch: list[Event]) -> None:
        """Send a batch of events. What MLflow refuses of it is left out (see `Sender`).

        If MLflow temporarily fails to store the batch, set the tag `pipeline.delayed` to the reason: it is sent again later. If the tag
        cannot be set, MLflow is unreachable. Raises the exception of this attempt to set the tag.
        """
        try:
            self._sender.send(batch)
        except Exception as error:
            reason = self._store.address.redacted(f"{batch[0].kind}: {failure(error)}")[:LONGEST_REASON]
            say(f"{self._folder.name}: an event will be sent again: {reason}")
            self._sender.tag({DELAYED: reason})
            if not self.cursor.has_failed:
                self.cursor.has_failed, self._retry_at_s = True, time.monotonic() + self._retry_after_s
                self._retry_after_s *= 2

    def _finish(self, run: "Run") -> None:
        """Finish the delivery after the stage has exited. If there was no `end` event, set the run's status to KILLED.

        If no event has failed, then remove the tag `pipeline.delayed` and the journal's copies of the model and other files, and only after
        that save that the run is complete. If this process is killed earlier, the next delivery does all of this again. If the journal has
        unsent events, keep the copies. Raises BlockingIOError if a stage has the journal open for writing.
        """
        client, run_id, removed = self._store.client, run.info.run_id, self._folder / REMOVED
        if not self._has_ended:
            client.set_terminated(run_id, "KILLED", end_time=self.cursor.time_ms)
        self._place()
        if self.cursor.has_failed:
            return
        if DELAYED in run.data.tags:
            client.delete_tag(run_id, DELAYED)
        shutil.rmtree(removed, ignore_errors=True)  # of a delivery that was killed
        with exclusive(self._folder):
            if events.has_more(self._folder / EVENTS, self._positions[EVENTS]):
                return
            (self._folder / MODEL).unlink(missing_ok=True)
            if (self._folder / COPIES).exists():
                (self._folder / COPIES).rename(removed)  # quick, so that a stage that opens the journal does not wait for the removal
        shutil.rmtree(removed, ignore_errors=True)
        self.cursor.offsets, self.cursor.has_ended = dict(self._positions), True
        self.cursor.save(self._folder, self._store.address.key)

    def _place(self) -> None:
        """Give the run its place among others: make it a child of its parent run, if its journal names one and MLflow has it, and update
        the view in the MLflow UI that compares the runs of the experiment (`comparison_view`).

        If the update fails, only print the error: the next run updates the view again. If the file was deleted, do nothing.
        """
        if self._run and (parent := self._start.get("tags", {}).get(PARENT_TAG)):
            self._store.make_child(self._run, parent)
        try:
            from pipeline.runs.mlflow import comparison_view  # late: no delivery depends on the private keys of this file
        except ImportError:
            return
        try:
            comparison_view.update(self._store.client, str(self.cursor.experiment_id))
        except Exception as error:  # whatever MLflow raises
            say(f"the comparison of runs in MLflow was not updated; the next run updates it: {type(error).__name__}: {error}", failed=True)


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
