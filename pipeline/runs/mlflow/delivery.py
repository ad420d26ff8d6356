"""Delivers a journal to its MLflow run, so that the run has each metric point exactly once."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runs import events
from pipeline.runs.events import EVENTS, SYSTEM, Cursor, Event
from pipeline.runs.journal import COPIES, MODEL, exclusive, is_written
from pipeline.runs.mlflow.sender import LONGEST_REASON, Sender
from pipeline.runs.mlflow.store import PARENT_TAG, Store, accepting, failure, say
from pipeline.runs.record import Record

if TYPE_CHECKING:
    from mlflow.entities import Run

DELAYED = "pipeline.delayed"
EVENTS_AT_ONCE = 250
REMOVED = f"{COPIES}.removed"


class Delivery:
    """Sends one journal to one MLflow store. It begins at the position that `delivered.json` has saved for this store.

    What MLflow refuses of an event is left out. If MLflow fails to store an event, the delivery ends before it, and the next attempt begins
    there. Only files and models do not hold up the events after them: those that MLflow failed to store are sent again when the stage has
    exited.

    Sending an event twice is safe. Metric points keep the timestamps that they have in the journal, so those that MLflow has are known.
    Repeated tags and files replace the earlier ones.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        """Read the position that is saved for the MLflow store `store` in the journal `folder`."""
        self._folder = folder
        self._store = store
        self.cursor = Cursor.load(folder, store.address.key)
        self._has_metrics = False
        self._run: Run | None = None
        self._sender: Sender
        self.stage = ""
        """The stage of the last event `start` or `reopen` that this delivery has sent; "" if it has sent none."""

    def catch_up(self) -> bool:
        """Send all events that MLflow does not have yet. Return True if the stage has exited and MLflow has the whole run.

        If the stage exited without an `end` event, the run gets the status KILLED. Raises MLflow's exception if MLflow does not store an
        event, Refusal for an unusable SQLite file, and BlockingIOError if a stage reopened the journal meanwhile.
        """
        # Check for a writing stage before reading: otherwise events that it appends just before it exits would be missed.
        has_writer = is_written(self._folder)
        if self._run is None:
            self._run = self._find_run()
            self._sender = Sender(self._store, self._run.info.run_id, self._folder, self.cursor.refused)
        if not has_writer:
            for begin in list(self.cursor.delayed.values()):
                event = next(events.read(self._folder / EVENTS, begin))
                self._send([event], begin)
                if event.kind == "model" and "model" not in self.cursor.delayed:  # its test scores, which came later, are sent again
                    self.cursor.offsets[EVENTS] = min(self.cursor.offsets[EVENTS], event.end)
            self._save()
        last = self._send_new(EVENTS)
        # MLflow's comparison of runs begins with the metric that was logged first, and this should not be a system metric.
        if self._has_metrics or not has_writer:
            self._send_new(SYSTEM)
        if not has_writer and not self.cursor.has_ended:
            self._finish(self._run, last)
        return not has_writer and self.cursor.is_complete(self._folder)

    def _find_run(self) -> "Run":
        """Return the journal's run in MLflow.

        If this is not the run that was saved, because that run was deleted or none was saved yet, go to the beginning of the journal. Then
        save the id of the run and this position.
        """
        run = self._store.run_for(self._folder.name, self._start, self.cursor.run_id)
        if run.info.run_id != self.cursor.run_id:
            self.cursor = Cursor(run.info.run_id, str(run.info.experiment_id), replaced=self.cursor.run_id)
            self._save()
        return run

    @property
    def _start(self) -> Mapping[str, Any]:
        """Return the fields of the journal's first event."""
        return Record(self._folder).first

    def _save(self) -> None:
        self.cursor.save(self._folder, self._store.address.key)

    def _send_new(self, name: str) -> Event | None:
        """Send the new lines of the journal's file `name`, and save the position after each batch. Return the last event; None if there is none.

        Only lines that fsync has put on disk are sent. Otherwise a power cut could remove a line that was already sent. The resumed training
        would write it again with another timestamp, and MLflow would have a second metric point. The position after the event `end` is saved
        by `_finish`: until then, the event is sent again. Raises MLflow's exceptions.
        """
        last, begin = None, self.cursor.offsets[name]
        for batch in batches(events.read_durable(self._folder / name, begin)):
            self._send(batch, begin)
            last = batch[-1]
            begin = last.end
            if last.kind != "end":
                self.cursor.offsets[name] = last.end
            if name == EVENTS:
                self.cursor.has_ended, self.cursor.time_ms = False, last.time_ms
                self._has_metrics |= last.kind == "metrics"
            self._save()
            if last.kind in ("start", "reopen"):
                self.stage = last.fields["stage"]
            if last.kind == "start":
                self._place()
        return last

    def _send(self, batch: list[Event], begin: int) -> None:
        """Send a batch of events, the first of which begins at the byte offset `begin`. Raises MLflow's exception if MLflow does not store it.

        If this is a file or model, then set the tag `pipeline.delayed` to the reason instead, and note the file in the cursor, to send it
        again. If the tag cannot be set, MLflow is unreachable. Raises the exception of this attempt to set the tag.
        """
        kind, fields = batch[0].kind, batch[0].fields
        file = f"artifact {Path(fields['folder'], Path(fields['file']).name)}" if kind == "artifact" else kind
        try:
            self._sender.send(batch)
            self.cursor.delayed.pop(file, None)  # also an earlier file of this name
        except Exception as error:
            if kind not in ("artifact", "model"):
                raise
            reason = self._store.address.redacted(f"{file}: {failure(error)}")[:LONGEST_REASON]
            say(f"{self._folder.name}: a file will be sent again: {reason}")
            self._sender.tag({DELAYED: reason})
            self.cursor.delayed[file] = begin

    def _finish(self, run: "Run", last: Event | None) -> None:
        """Finish the delivery after the stage has exited, with the event `last`. If this is no `end` event, set the run's status to KILLED.

        If MLflow has all files, then remove the tag `pipeline.delayed` and the journal's copies of the model and other files, and only after
        that save that the run is complete. If this process is killed earlier, the next delivery does all of this again. If the journal has
        unsent events, keep the copies. Raises BlockingIOError if a stage has the journal open for writing.
        """
        client, run_id, removed = self._store.client, run.info.run_id, self._folder / REMOVED
        end = self.cursor.offsets[EVENTS]
        if last and last.kind == "end":
            end = last.end
        else:
            client.set_terminated(run_id, "KILLED", end_time=self.cursor.time_ms)
        self._place()
        if self.cursor.delayed:
            return
        if DELAYED in client.get_run(run_id).data.tags:
            client.delete_tag(run_id, DELAYED)
        shutil.rmtree(removed, ignore_errors=True)  # of a delivery that was killed
        with exclusive(self._folder):
            if events.has_more(self._folder / EVENTS, end):
                return
            (self._folder / MODEL).unlink(missing_ok=True)
            if (self._folder / COPIES).exists():
                (self._folder / COPIES).rename(removed)  # quick, so that a stage that opens the journal does not wait for the removal
        shutil.rmtree(removed, ignore_errors=True)
        self.cursor.offsets[EVENTS], self.cursor.has_ended = end, True
        self._save()

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
            accepting(lambda: comparison_view.update(self._store.client, str(self.cursor.experiment_id)))
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
