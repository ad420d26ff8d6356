"""From a journal to its MLflow run: batch by batch, each point exactly once."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.tracking import events
from pipeline.tracking.facts import Scalar
from pipeline.tracking.logged_model import Build, log_model
from pipeline.tracking.position import SYSTEM, Position
from pipeline.tracking.store import MODEL_TAG, Store, is_passing

if TYPE_CHECKING:
    from mlflow.entities import Metric

POINTS_AT_ONCE, NAMES_AT_ONCE = 1000, 100  # what MLflow takes in one request
LONGEST_PARAM, LONGEST_DATASET_DIGEST = 6000, 36


class Delivery:
    """Goes on where `delivered.json` says; a repetition after a kill is ignored by MLflow, for the times are those of the journal."""

    def __init__(self, folder: Path, store: Store, build: Build) -> None:
        self.folder = folder
        self._store = store
        self._build = build
        self._position = Position.load(folder, store.address.key)
        self._run_id: str | None = None

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
            self._run_id = None  # it may have been deleted: look again before the next attempt
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
        if self._run_id is not None:
            return
        first = next(events.read(self.folder / events.EVENTS), None)
        start: Mapping[str, Any] = first.fields if first and first.kind == "start" else {}
        self._run_id, _ = self._store.run_for(self.folder.name, start, self._position.run_id)
        if self._run_id != self._position.run_id:
            self._position = Position(run_id=self._run_id)
            self._save()

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
            self._send(batch)
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
        self._tag({"pipeline.refused": reason})

    def _send(self, batch: list[events.Event]) -> None:
        fields = batch[-1].fields
        match batch[-1].kind:
            case "metrics":
                self._log_points(batch)
            case "start" | "reopen":
                self._begin(fields)
            case "tags":
                self._tag(fields["tags"])
            case "artifact":
                self._log_artifact(fields)
            case "model":
                self._log_model(fields)
            case "end":
                self._store.client.set_terminated(self._run, fields["status"], end_time=batch[-1].time_ms)
            case kind:
                print(f"tracking: {self.folder.name} holds an event of an unknown kind: {kind}", flush=True)

    @property
    def _run(self) -> str:
        assert self._run_id is not None
        return self._run_id

    def _begin(self, fields: Mapping[str, Any]) -> None:
        self._store.client.update_run(self._run, status="RUNNING")
        self._tag(fields["tags"])
        self._log_params(fields["params"])
        if fields["dataset_name"]:
            self._log_dataset(fields)

    def _log_points(self, batch: list[events.Event]) -> None:
        points = [point for event in batch for point in metrics_of(event)]
        for start in range(0, len(points), POINTS_AT_ONCE):
            self._store.client.log_batch(self._run, metrics=points[start : start + POINTS_AT_ONCE])

    def _log_params(self, params: Mapping[str, Scalar]) -> None:
        """MLflow's params cannot change: where the run has another value, a tag says what it was this time."""
        from mlflow.entities import Param

        wanted = {name: written(value)[:LONGEST_PARAM] for name, value in params.items()}
        held = self._store.client.get_run(self._run).data.params if wanted else {}
        fresh = [Param(name, value) for name, value in wanted.items() if name not in held]
        for start in range(0, len(fresh), NAMES_AT_ONCE):
            self._store.client.log_batch(self._run, params=fresh[start : start + NAMES_AT_ONCE])
        self._tag({f"pipeline.changed.{name}": value for name, value in wanted.items() if held.get(name, value) != value})

    def _tag(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        rows = [RunTag(name, str(value)) for name, value in tags.items()]
        for start in range(0, len(rows), NAMES_AT_ONCE):
            self._store.client.log_batch(self._run, tags=rows[start : start + NAMES_AT_ONCE])

    def _log_dataset(self, fields: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        digest = fields["dataset_digest"]
        dataset = Dataset(
            name=fields["dataset_name"],
            digest=digest[:LONGEST_DATASET_DIGEST],
            source_type="local",
            source=json.dumps({"uri": fields["dataset_name"]}),
            profile=json.dumps({**fields["dataset"], "digest": digest}),
        )
        self._store.client.log_inputs(self._run, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _log_artifact(self, fields: Mapping[str, Any]) -> None:
        path = self.folder / fields["file"]
        if not path.is_file():
            raise LookupError(f"{fields['file']} is gone from the journal")
        self._store.client.log_artifact(self._run, str(path), fields["folder"] or None)

    def _log_model(self, fields: Mapping[str, Any]) -> None:
        self._tag({MODEL_TAG: fields["sha256"]})
        log_model(
            self._store, self._run, self.folder / fields["file"], digest=fields["sha256"], step=self._position.step, build=self._build
        )


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


def metrics_of(event: events.Event) -> "list[Metric]":
    from mlflow.entities import Metric

    return [Metric(name, float(value), event.time_ms, event.fields["step"]) for name, value in event.fields["values"].items()]


def written(value: Scalar) -> str:
    """As the YAML of the parameters has it: `true`, `null`, `0.1`, and words without quotes."""
    return value if isinstance(value, str) else json.dumps(value)
