"""Delivers a journal to its MLflow run, batch by batch, each metric point exactly once."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.io import files
from pipeline.tracking import comparison, events
from pipeline.tracking.batches import batches
from pipeline.tracking.cursor import SYSTEM, Cursor
from pipeline.tracking.journal import COPIES, WRITER_LOCK, is_written
from pipeline.tracking.logged_model import Build
from pipeline.tracking.sender import Sender
from pipeline.tracking.store import Store, is_passing

ATTEMPTS, PAUSE_S = 3, 0.5
PATIENCE_S = 20.0
REFUSED, DELAYED = "pipeline.refused", "pipeline.delayed"


class Delivery:
    """The delivery of one journal to one store.

    It resumes at the cursor in `delivered.json`. Points sent twice after a kill are ignored by MLflow, because their timestamps come
    from the journal and are equal.
    """

    def __init__(self, folder: Path, store: Store, build: Build) -> None:
        self.folder = folder
        self._store = store
        self._build = build
        self._cursor = Cursor.load(folder, store.address.key)
        self._sending: Sender | None = None
        self._lost_s = 0.0

    @property
    def is_complete(self) -> bool:
        return self._cursor.is_complete(self.folder)

    def catch_up(self) -> None:
        """Deliver all events that the journal holds.

        Raises MLflow's exception when it is unreachable, and TimeoutError when failing events took too long. The cursor is
        saved, and the next call resumes there.
        """
        if not self._has_news():
            return
        self._find_run()
        try:
            for batch in self._batches(events.EVENTS, self._cursor.offset):
                self._deliver(batch)
                self._advance(batch[-1])
                self._ask_patience()
            for batch in self._batches(SYSTEM, self._cursor.system_offset) if self._is_system_due() else ():
                self._deliver(batch)
                self._cursor.system_offset = batch[-1].end
                self._save()
                self._ask_patience()
        except Exception:
            self._sending = None  # the run may have been deleted: look it up again at the next attempt
            self._lost_s = 0.0
            raise

    def close(self) -> None:
        """Finish the delivery after the writer has exited.

        Send the events once more that were set aside, also by an earlier stage. A run without an `end` event gets the status KILLED.
        """
        self._settle_status()  # first, because the repeated attempts below may hang
        if self._cursor.redo is not None:
            self._cursor.begin_again()
            self.catch_up()
            self._settle_status()
        if self.is_complete:
            self._tidy()
        if self._cursor.experiment_id:
            self._update_comparison()

    def _settle_status(self) -> None:
        """Set the status of a run that is still RUNNING to KILLED."""
        if self._cursor.run_id and self._cursor.status == "RUNNING":
            self._store.client.set_terminated(self._cursor.run_id, "KILLED", end_time=self._cursor.time_ms)
            self._cursor.status = "KILLED"
            self._save()

    def _has_news(self) -> bool:
        return self._cursor.offset < events.whole_bytes(self.folder / events.EVENTS) or (
            self._cursor.system_offset < events.whole_bytes(self.folder / SYSTEM)
        )

    def _is_system_due(self) -> bool:
        """Return True once a metric of the stage is delivered, or the writer has exited.

        MLflow's comparison of runs shows the metric first that was logged first; that should not be a system metric.
        """
        delivered = events.read(self.folder / events.EVENTS, limit=self._cursor.offset)
        return any(event.kind == "metrics" for event in delivered) or not is_written(self.folder)

    def _find_run(self) -> None:
        """Find or create the MLflow run; start a new cursor where it is another run than before."""
        if self._sending is not None:
            return
        first = next(events.read(self.folder / events.EVENTS), None)
        start: Mapping[str, Any] = first.fields if first and first.kind == "start" else {}
        run = self._store.run_for(self.folder.name, start, self._cursor.run_id)
        run_id = run.info.run_id
        kept = self._store.protect_tags(run)
        if run_id != self._cursor.run_id:
            self._cursor = Cursor(run_id)
            self._save()
        self._cursor.experiment_id = str(run.info.experiment_id)
        self._sending = Sender(self._store, run_id, self.folder, self._build, kept)

    @property
    def _sender(self) -> Sender:
        assert self._sending is not None
        return self._sending

    def _batches(self, name: str, offset: int) -> "Iterator[list[events.Event]]":
        """Yield batches of the fsynced lines only.

        A line lost in a power cut is written again with another timestamp, and would become a second metric point.
        """
        return batches(events.read(self.folder / name, offset, events.settled_bytes(self.folder / name)))

    def _advance(self, last: events.Event) -> None:
        self._cursor.offset, self._cursor.time_ms = last.end, last.time_ms
        if last.kind in {"start", "reopen"}:
            self._cursor.status = "RUNNING"
        elif last.kind == "end":
            self._cursor.status = last.fields["status"]
        self._save()
        if last.kind == "start":
            self._update_comparison()

    def _update_comparison(self) -> None:
        """Add the run to the experiment's comparison. A failure is only printed, because the next run updates the comparison."""
        try:
            comparison.update(self._store.client, str(self._cursor.experiment_id))
        except Exception as error:  # whatever MLflow raises
            print(f"tracking: the comparison was not updated: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def _save(self) -> None:
        self._cursor.save(self.folder, self._store.address.key)

    def _deliver(self, batch: list[events.Event]) -> None:
        """Send a batch, without letting a failing event block the events after it.

        An event that fails for a temporary reason while MLflow is reachable is set aside for a later attempt. An event
        that MLflow rejects is recorded in a tag and skipped; a rejected batch is sent again event by event to find it.
        """
        begin = time.monotonic()
        error = self._failure(batch)
        if error is None:
            self._lost_s = 0.0
        elif is_passing(error):
            self._lost_s += time.monotonic() - begin
            self._cursor.set_aside()
        elif len(batch) > 1:
            for event in batch:
                self._deliver([event])
        else:
            self._note(REFUSED, batch[0], error)

    def _ask_patience(self) -> None:
        """Raise TimeoutError when failing events took too long. Called after the cursor has moved, so that each attempt gets further."""
        if self._lost_s > PATIENCE_S:  # otherwise the end of a stage would wait for every failing event
            raise TimeoutError(f"MLflow answers, but {self._lost_s:.0f} s went by with what it does not take")

    def _failure(self, batch: list[events.Event]) -> Exception | None:
        """Send a batch, with retries, and return the last exception, or None on success.

        A tag is set after each temporary failure. Where that fails too, MLflow is unreachable: the failure of the batch is raised.
        """
        failure: Exception | None = None
        for attempt in range(ATTEMPTS if self._cursor.redo is None else 1):
            time.sleep(PAUSE_S * attempt)
            try:
                self._sender.send(batch)
            except Exception as error:
                failure = error
            else:
                return None
            if not is_passing(failure):
                return failure
            try:
                self._note(DELAYED, batch[0], failure)
            except Exception:
                raise failure from None
        return failure

    def _note(self, tag: str, event: events.Event, error: Exception) -> None:
        """Print why MLflow does not accept an event, and set a tag with the redacted reason."""
        reason = self._store.address.redacted(f"{event.kind}: {type(error).__name__}: {error}")[:500]
        print(f"tracking: MLflow rejected an event of {self.folder.name}: {reason}", flush=True)
        self._sender.tag({tag: reason})

    def _tidy(self) -> None:
        """After a complete delivery, remove the tag `pipeline.delayed` and, unless a new writer is active, the journal's file copies."""
        run_id = self._cursor.run_id
        assert run_id is not None
        if DELAYED in self._store.client.get_run(run_id).data.tags:
            self._store.client.delete_tag(run_id, DELAYED)
        with files.locked(self.folder / WRITER_LOCK, wait=False) as taken:
            if taken and self.is_complete:
                for event in events.read(self.folder / events.EVENTS):
                    if event.kind == "model":
                        (self.folder / event.fields["file"]).unlink(missing_ok=True)
                shutil.rmtree(self.folder / COPIES, ignore_errors=True)
