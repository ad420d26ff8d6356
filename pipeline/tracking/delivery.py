"""From a journal to its MLflow run: batch by batch, each point exactly once."""

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
    """Goes on where `delivered.json` says; a repetition after a kill is ignored by MLflow, for the times are those of the journal."""

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
        """Deliver all that the journal holds. Raises when MLflow is away or patience is spent; where it stopped is remembered, and the next time begins there."""
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
            self._sending = None  # the run may have been deleted: look again before the next attempt
            self._lost_s = 0.0
            raise

    def close(self) -> None:
        """The writer is gone: try once more what was set aside, also by an earlier stage; a run without an end was killed."""
        self._settle_status()  # before what may hang again
        if self._cursor.redo is not None:
            self._cursor.begin_again()
            self.catch_up()
            self._settle_status()
        if self.is_complete:
            self._tidy()
        if self._cursor.experiment_id:
            self._update_comparison()

    def _settle_status(self) -> None:
        if self._cursor.run_id and self._cursor.status == "RUNNING":
            self._store.client.set_terminated(self._cursor.run_id, "KILLED", end_time=self._cursor.time_ms)
            self._cursor.status = "KILLED"
            self._save()

    def _has_news(self) -> bool:
        return self._cursor.offset < events.whole_bytes(self.folder / events.EVENTS) or (
            self._cursor.system_offset < events.whole_bytes(self.folder / SYSTEM)
        )

    def _is_system_due(self) -> bool:
        """Whether a metric of the stage was delivered: MLflow's comparison of runs begins with the metric that a run was given first."""
        delivered = events.read(self.folder / events.EVENTS, limit=self._cursor.offset)
        return any(event.kind == "metrics" for event in delivered) or not is_written(self.folder)

    def _find_run(self) -> None:
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
        """Only what is on the disk: a line lost with the power comes back with another time, and would be a second point."""
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
        """Show the run in the experiment's comparison. A failure costs no delivery: the next run brings the comparison up to date."""
        try:
            comparison.update(self._store.client, str(self._cursor.experiment_id))
        except Exception as error:  # whatever MLflow raises
            print(f"tracking: the comparison was not updated: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def _save(self) -> None:
        self._cursor.save(self.folder, self._store.address.key)

    def _deliver(self, batch: list[events.Event]) -> None:
        """What fails on although MLflow answers is set aside for a later attempt, what it refuses for good: neither holds up those behind."""
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
        """Only behind what was set aside, so that each attempt comes further than the one before."""
        if self._lost_s > PATIENCE_S:  # a stage that ends must not wait for one event after the other
            raise TimeoutError(f"MLflow answers, but {self._lost_s:.0f} s went by with what it does not take")

    def _failure(self, batch: list[events.Event]) -> Exception | None:
        """What MLflow has against a batch, after some attempts. Raises while it takes nothing else either: then it is away."""
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
        reason = self._store.address.redacted(f"{event.kind}: {type(error).__name__}: {error}")[:500]
        print(f"tracking: MLflow does not take an event of {self.folder.name}: {reason}", flush=True)
        self._sender.tag({tag: reason})

    def _tidy(self) -> None:
        """MLflow has all: its note of delays goes, and the copies that the lines name, unless a writer is at work again."""
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
