"""Delivers a journal to its MLflow run: from the saved position on, each kind of event by one or more calls of MLflow's client.

Whatever ends a delivery, such as a kill or a server that is down, the next one begins at the saved position, and the run has each metric point once.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.environment import Paths
from pipeline.core.section import Scalar, formatted
from pipeline.core.untrusted import shown
from pipeline.runs import events
from pipeline.runs.events import EVENTS, SYSTEM, Cursor, Event
from pipeline.runs.journal import COPIES, MODEL, exclusive, is_written
from pipeline.runs.mlflow.store import DESCRIBED_TAG, MODEL_TAG, NOTE_TAG, PARENT_TAG, Store, accepting, describing, failure, is_refusal
from pipeline.runs.record import Record

if TYPE_CHECKING:
    from mlflow.entities import Metric

EVENTS_AT_ONCE = 250
FAILURE, REFUSED, MISSING = "pipeline.failure", "pipeline.refused", "pipeline.missing"
"""Tags of a run: why it failed, what MLflow refused of it, and what its journal could not record."""
LONGEST_REASON, LONGEST_TAG, LONGEST_PARAM = 500, 5000, 6000
CUT = " ... (cut: params.yaml, an artifact of the run, has the whole value)"
SHOWN_DIGITS = 8  # length of a dataset's digest in MLflow's table of runs; the profile has the whole digest
SIGNIFICANT_DIGITS = 6  # MLflow displays every digit that it stores; the files in metrics/ and plots/ have the exact values


class Delivery:
    """Sends one journal to one MLflow store. It begins at the position that `delivered.json` has saved for this store.

    What MLflow refuses of an event is left out. If MLflow fails to store an event, the delivery ends before it, and the next attempt begins
    there.

    Sending an event twice is safe. Metric points keep the timestamps that they have in the journal, so MLflow stores a repeated point once.
    Repeated tags and files replace the earlier ones.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        """Read the position that is saved for the MLflow store `store` in the journal `folder`."""
        self._folder, self._store = folder, store
        self.cursor = Cursor.load(folder, store.address.key)
        self._has_metrics = False

    def catch_up(self) -> bool:
        """Send all events that MLflow does not have yet. Return True if the stage has exited and MLflow has the whole run.

        If the stage exited without an `end` event, the run gets the status KILLED. Raises MLflow's exception if MLflow does not store an
        event, Refusal for an unusable SQLite file, and BlockingIOError if a stage reopened the journal meanwhile.
        """
        # Check for a writing stage before reading: otherwise events that it appends just before it exits would be missed.
        has_writer = is_written(self._folder)
        last = self._send_new(EVENTS)
        # MLflow's comparison of runs begins with the metric that was logged first, and this should not be a system metric.
        if self._has_metrics or not has_writer:
            self._send_new(SYSTEM)
        if not has_writer and not self.cursor.has_ended:
            self._finish(last)
        return not has_writer and self.cursor.is_complete(self._folder)

    @cached_property
    def _sender(self) -> "Sender":
        """Return what sends events to the journal's run in MLflow.

        If this is not the run that was saved, because that run was deleted or none was saved yet, go to the beginning of the journal. Then
        save the id of the run and this position.
        """
        run = self._store.run_for(self._folder.name, Record(self._folder).first, self.cursor.run_id).info
        if run.run_id != self.cursor.run_id:
            self.cursor = Cursor(run.run_id, str(run.experiment_id), replaced=self.cursor.run_id)
            self._save()
        return Sender(self._store, run.run_id, self._folder, self.cursor.refused)

    def _save(self) -> None:
        self.cursor.save(self._folder, self._store.address.key)

    def _send_new(self, name: str) -> Event | None:
        """Send the new lines of the journal's file `name`, and save the position after each batch. Return the last event; None if there is none.

        Only lines that fsync has put on disk are sent. Otherwise a power cut could remove a line that was already sent. The resumed training
        would write it again with another timestamp, and MLflow would have a second metric point. The position after the event `end` is saved
        by `_finish`: until then, the event is sent again. Raises MLflow's exceptions.
        """
        sender, last = self._sender, None  # first: it may set the position back
        for batch in batches(events.read_durable(self._folder / name, self.cursor.offsets[name])):
            sender.send(batch)
            last = batch[-1]
            if last.kind != "end":
                self.cursor.offsets[name] = last.end
            if name == EVENTS:
                self.cursor.has_ended, self.cursor.time_ms = False, last.time_ms
                self._has_metrics |= last.kind == "metrics"
            self._save()
            if last.kind == "start":
                self._place()
        return last

    def _finish(self, last: Event | None) -> None:
        """Finish the delivery after the stage has exited, with the event `last`. If this is no `end` event, set the run's status to KILLED.

        Remove the journal's copies of the model and other files, and only after that save that the run is complete. If this process is
        killed earlier, the next delivery does all of this again. If the journal has unsent events, keep the copies. Raises BlockingIOError
        if a stage has the journal open for writing.
        """
        if last is None or last.kind != "end":
            last = Event(self.cursor.offsets[EVENTS], {"kind": "end", "time_ms": self.cursor.time_ms, "status": "KILLED"})
            self._sender.send([last])
        self._place()
        with exclusive(self._folder, shared=True):  # `mirror.wait` waits no longer for a journal that a stage writes
            if events.has_more(self._folder / EVENTS, last.end):
                return
            (self._folder / MODEL).unlink(missing_ok=True)
            shutil.rmtree(self._folder / COPIES, ignore_errors=True)
        self.cursor.offsets[EVENTS], self.cursor.has_ended = last.end, True
        self._save()

    def _place(self) -> None:
        """Give the run its place among others: make it a child of its parent run, if its journal names one and MLflow has it, and update
        the view in the MLflow UI that compares the runs of the experiment (`comparison_view`).

        If the update fails, only print the error: the next run updates the view again.
        """
        experiment_id = str(self.cursor.experiment_id)
        if parent := Record(self._folder).first.get("tags", {}).get(PARENT_TAG):
            self._store.make_child(str(self.cursor.run_id), parent, experiment_id)
        try:
            from pipeline.runs.mlflow import comparison_view  # late: no delivery depends on the private keys of this file

            accepting(lambda: comparison_view.update(self._store.client, experiment_id))
        except Exception as error:  # whatever MLflow raises
            self._store.address.say(f"the next run updates the comparison of runs, which failed: {failure(error)}", failed=True)


def batches(lines: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield the events in batches: up to `EVENTS_AT_ONCE` consecutive events of the kind `metrics`, or one event of another kind."""
    for is_metrics, group in groupby(lines, lambda line: line.kind == "metrics"):
        while batch := list(islice(group, EVENTS_AT_ONCE if is_metrics else 1)):
            yield batch


class Sender:
    """Sends the events of the journal `folder` to the MLflow run `run_id`.

    What MLflow refuses costs only itself: the rest of the event is sent. `refused` collects the reasons by what was refused.
    """

    def __init__(self, store: Store, run_id: str, folder: Path, refused: dict[str, str]) -> None:
        self._store, self._client, self._run_id, self._folder, self._refused = store, store.client, run_id, folder, refused
        self._present: dict[str, set[tuple[int, int, str]]] = {}

    def send(self, batch: list[Event]) -> None:
        """Send one event of any kind, or several consecutive events of the kind `metrics`.

        Raises MLflow's exception unless it is a refusal, with a note that names the event.
        """
        kind, fields = batch[-1].kind, batch[-1].fields
        name = f"artifact {Path(fields['folder'], Path(fields['file']).name)}" if kind == "artifact" else f"event {kind}"
        try:
            self._or_leave_out(name, partial(self._send, batch))
        except Exception as error:
            error.add_note(shown(name))
            raise

    def _send(self, batch: list[Event]) -> None:
        fields = batch[-1].fields
        match batch[-1].kind:
            case "metrics":
                self._log_points(batch)
            case "start" | "reopen":
                self._begin(fields)
            case "description":
                self._describe(fields["text"])
            case "artifact":
                self._log_artifact(fields)
            case "model":
                self._log_model(fields)
            case "gap":
                gaps = [line.fields["missing"] for line in Record(self._folder).events if line.kind == "gap" and line.end <= batch[-1].end]
                self.tag({MISSING: "; ".join(gaps)})
            case "end":
                if reason := fields.get("reason"):
                    self.tag({FAILURE: reason})
                    self._describe(f"failed: {reason}")
                self._client.set_terminated(self._run_id, fields["status"], end_time=batch[-1].time_ms)
            case _:
                raise LookupError("a line of the journal is damaged, or of another version of the pipeline")

    def _or_leave_out(self, what: str, send: Callable[[], object]) -> None:
        """Call `send`. If MLflow refuses it (`is_refusal`), leave out `what` and record the reason.

        The reason is set as the run's tag `pipeline.refused`, and kept in `delivered.json`. If the tag cannot be set, MLflow is unreachable,
        or the run was deleted: the delivery ends, and keeps nothing. Raises the exception of this attempt, and those that are no refusal.
        """
        try:
            accepting(send)
        except Exception as error:
            what = shown(what)
            if not is_refusal(error):
                raise
            if what not in self._refused:
                reason = self._store.address.redacted(failure(error))[:LONGEST_REASON]
                reasons = {**self._refused, what: reason}
                self._client.set_tag(self._run_id, REFUSED, "; ".join(map(": ".join, reasons.items()))[:LONGEST_TAG])
                self._refused[what] = reason
                self._store.address.say(f"{self._folder.name}: {what} is left out: {reason}")

    def _log(self, kind: str, items: list[Any]) -> None:
        """Log the items, all metrics, params or tags, in one request. If MLflow refuses it, log the items of each name alone."""
        log: Any = self._client.log_batch
        try:
            log(self._run_id, **{f"{kind}s": items})
        except Exception as error:
            if not is_refusal(error):
                raise
            for name in dict.fromkeys(item.key for item in items):
                named = [item for item in items if item.key == name]
                self._or_leave_out(f"{kind} {name}", partial(log, self._run_id, **{f"{kind}s": named}))

    def _begin(self, fields: Mapping[str, Any]) -> None:
        """Send an event `start` or `reopen`. Set the run's status to RUNNING, and log the params, tags, datasets and provenance in
        `fields`, the fields of the event.

        MLflow's params cannot change. If the run already has another value of the param NAME, that value stays, and the tag
        `pipeline.changed.NAME` gets the new value. Params that are too long for MLflow are cut.
        """
        from mlflow.entities import Param

        self._client.update_run(self._run_id, status="RUNNING")
        run = self._client.get_run(self._run_id).data
        params = {name: logged(value) for name, value in fields["params"].items()}
        self._log("param", [Param(name, value) for name, value in params.items() if name not in run.params])
        changed = {f"pipeline.changed.{name}": value for name, value in params.items() if run.params.get(name, value) != value}
        # whoever trained a run stays its user
        self.tag({name: value for name, value in fields["tags"].items() if name != "mlflow.user" or name not in run.tags} | changed)
        if FAILURE in run.tags:
            self._client.delete_tag(self._run_id, FAILURE)
            self._describe(f"running again, {fields.get('subject', '')}")
        for dataset in fields.get("datasets", []):
            self._or_leave_out(f"dataset {dataset['name']}", partial(self._log_dataset, dataset))
        if provenance := fields.get("provenance"):
            path = f"provenance/{fields['stage']}.json"
            self._or_leave_out("provenance", partial(self._client.log_dict, self._run_id, provenance, path))

    def _describe(self, text: str) -> None:
        """Set the description of the run, unless a person edited it in MLflow."""
        tags = self._client.get_run(self._run_id).data.tags
        if NOTE_TAG not in tags or files.digest_of(tags[NOTE_TAG]) == tags.get(DESCRIBED_TAG):
            self.tag(describing(text))

    def _log_points(self, batch: list[Event]) -> None:
        from pipeline.runs.mlflow.saved_model import add_scores  # late: it imports numpy

        points: list[Metric] = []
        for event in batch:
            self._or_leave_out(f"metrics of step {event.fields['step']}", partial(lambda each: points.extend(metrics_of(each)), event))
        # MLflow compares runs by the metric that was logged first.
        points.sort(key=lambda point: (not point.key.startswith("valid/"), point.key))
        if absent := [point for point in self._accepted(points) if not self._is_present(point)]:
            self._log("metric", absent)
        add_scores(self._client, self._run_id, self._accepted(points))

    def _is_present(self, point: "Metric") -> bool:
        """Return True if the run has the point. MLflow ignores a repeated point too, but takes longer to find it than to store a new one.

        The history of a metric is read once, and only if its last point is not older than this one.
        """
        if point.timestamp > self._last_times.get(point.key, -1):
            return False
        if point.key not in self._present:
            try:
                history = self._client.get_metric_history(self._run_id, point.key)
            except Exception:  # such as a history that takes the server too long: then all points are sent
                history = []
            self._present[point.key] = {identity(each) for each in history}
        return identity(point) in self._present[point.key]

    @cached_property
    def _last_times(self) -> dict[str, int]:
        """Return the time of the last point of each metric that the run had when this delivery began."""
        return {metric.key: metric.timestamp for metric in self._client.get_run(self._run_id).data.to_proto().metrics}

    def _accepted(self, points: "list[Metric]") -> "list[Metric]":
        return [point for point in points if shown(f"metric {point.key}") not in self._refused]

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        self._log("tag", [RunTag(name, str(value)) for name, value in tags.items()])

    def _log_dataset(self, fields: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=fields["name"],
            digest=fields["digest"][:SHOWN_DIGITS],
            source_type="local",
            source=json.dumps({"uri": fields["name"]}),
            profile=json.dumps({**fields["profile"], "digest": fields["digest"]}),
        )
        self._client.log_inputs(self._run_id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", fields["context"])])])

    def _log_artifact(self, fields: Mapping[str, Any]) -> None:
        path, folder = self._folder / fields["file"], fields["folder"] or None
        if path.is_file():
            self._client.log_artifact(self._run_id, str(path), folder)
        elif path.name not in {Path(artifact.path).name for artifact in self._client.list_artifacts(self._run_id, folder)}:
            raise LookupError(f"{fields['file']} was removed from the journal after an MLflow store had received it")

    def _log_model(self, fields: Mapping[str, Any]) -> None:
        from pipeline.runs.find import on_this_machine  # late: it imports numpy
        from pipeline.runs.mlflow.saved_model import log_model

        self.tag({MODEL_TAG: fields["sha256"]})
        path, digest, step, root = self._folder / fields["file"], fields["sha256"], fields["step"], self._folder.parents[2]
        if not path.is_file():
            path = on_this_machine(digest, Paths(root), root) or path
        lines = Record(self._folder).events
        points = [point for line in lines if line.kind == "metrics" and line.fields["step"] == step for point in metrics_of(line)]
        log_model(self._client, self._run_id, path, digest=digest, step=step, points=self._accepted(points))


def metrics_of(event: Event) -> "list[Metric]":
    """Return the values in an event of the kind `metrics` as MLflow's objects, rounded to `SIGNIFICANT_DIGITS`."""
    from mlflow.entities import Metric

    return [Metric(name, rounded(float(value)), event.time_ms, event.fields["step"]) for name, value in event.fields["values"].items()]


def identity(point: "Metric") -> tuple[int, int, str]:
    """Return what tells a point from the others of its metric. The value is a text, because NaN differs from itself."""
    return point.step, point.timestamp, str(point.value)


def logged(value: Scalar) -> str:
    """Return the value of a parameter as MLflow stores it: a longer text is cut and marked."""
    text = formatted(value)
    return text if len(text) <= LONGEST_PARAM else text[: LONGEST_PARAM - len(CUT)] + CUT


def rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
