"""From a journal to its MLflow run: batch by batch, each point exactly once."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.tracking import events
from pipeline.tracking.logged_model import Build
from pipeline.tracking.position import SYSTEM, Position
from pipeline.tracking.sender import POINTS_AT_ONCE, Sender
from pipeline.tracking.store import Store, is_passing


class Delivery:
    """Goes on where `delivered.json` says; a repetition after a kill is ignored by MLflow, for the times are those of the journal."""

    def __init__(self, folder: Path, store: Store, build: Build) -> None:
        self.folder = folder
        self._store = store
        self._build = build
        self._position = Position.load(folder, store.address.key)
        self._sending: Sender | None = None

    @property
    def is_complete(self) -> bool:
        return self._position.is_complete(self.folder)

    def catch_up(self) -> None:
        """Deliver all that the journal holds. Raises when MLflow is away; what was delivered until then is remembered."""
        if not self._has_news():
            return
        self._find_run()
        try:
            for batch in batches(events.read(self.folder / SYSTEM, self._position.system_offset)):
                self._deliver(batch)
                self._position.system_offset = batch[-1].end
                self._save()
            for batch in batches(events.read(self.folder / events.EVENTS, self._position.offset)):
                self._deliver(batch)
                self._advance(batch[-1])
        except Exception:
            self._sending = None  # the run may have been deleted: look again before the next attempt
            raise

    def close(self) -> None:
        """The writer is gone: a run without an end was killed."""
        if self._position.run_id and self._position.status == "RUNNING":
            self._store.client.set_terminated(self._position.run_id, "KILLED", end_time=self._position.time_ms)
            self._position.status = "KILLED"
            self._save()

    def _has_news(self) -> bool:
        return self._position.offset < events.whole_bytes(self.folder / events.EVENTS) or (
            self._position.system_offset < events.whole_bytes(self.folder / SYSTEM)
        )

    def _find_run(self) -> None:
        if self._sending is not None:
            return
        first = next(events.read(self.folder / events.EVENTS), None)
        start: Mapping[str, Any] = first.fields if first and first.kind == "start" else {}
        run_id, _ = self._store.run_for(self.folder.name, start, self._position.run_id)
        if run_id != self._position.run_id:
            self._position = Position(run_id=run_id)
            self._save()
        self._sending = Sender(self._store, run_id, self.folder, self._build)

    @property
    def _sender(self) -> Sender:
        assert self._sending is not None
        return self._sending

    def _advance(self, last: events.Event) -> None:
        self._position.offset, self._position.time_ms = last.end, last.time_ms
        if last.kind == "metrics":
            self._position.step = last.fields["step"]
        elif last.kind in {"start", "reopen"}:
            self._position.status = "RUNNING"
        elif last.kind == "end":
            self._position.status = last.fields["status"]
        self._save()
        if last.kind == "model":  # only after the position is on the disk: a repetition would miss it
            (self.folder / last.fields["file"]).unlink(missing_ok=True)

    def _save(self) -> None:
        self._position.save(self.folder, self._store.address.key)

    def _deliver(self, batch: list[events.Event]) -> None:
        """An event that MLflow refuses for good must not hold up those behind it."""
        try:
            self._sender.send(batch, step=self._position.step)
        except Exception as error:
            if is_passing(error):
                raise
            if len(batch) > 1:
                for event in batch:
                    self._deliver([event])
            else:
                self._set_aside(batch[0], error)

    def _set_aside(self, event: events.Event, error: Exception) -> None:
        reason = self._store.address.redacted(f"{event.kind}: {type(error).__name__}: {error}")[:500]
        print(f"tracking: MLflow refuses an event of {self.folder.name}: {reason}", flush=True)
        self._sender.tag({"pipeline.refused": reason})


def batches(lines: Iterable[events.Event]) -> Iterator[list[events.Event]]:
    """Neighbouring metrics together, as many as MLflow takes at once; every other event by itself."""
    batch: list[events.Event] = []
    num_points = 0
    for line in lines:
        added = len(line.fields["values"]) if line.kind == "metrics" else 0
        if batch and (not added or num_points + added > POINTS_AT_ONCE):
            yield batch
            batch, num_points = [], 0
        batch.append(line)
        num_points += added
        if not added:
            yield batch
            batch, num_points = [], 0
    if batch:
        yield batch
