"""Sends the events of a journal to MLflow: each kind of event is one or more calls of MLflow's client."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.core.environment import Paths
from pipeline.core.section import formatted
from pipeline.core.untrusted import shown
from pipeline.runs import events
from pipeline.runs.mlflow.store import DESCRIBED_TAG, MODEL_TAG, NOTE_TAG, Store, accepting, describing, failure, is_refusal, logged, say
from pipeline.runs.record import Record

if TYPE_CHECKING:
    from mlflow.entities import Metric

FAILURE, REFUSED, MISSING = "pipeline.failure", "pipeline.refused", "pipeline.missing"
"""Tags of a run: why it failed, what MLflow refused of it, and what its journal could not record."""
LONGEST_REASON, LONGEST_TAG = 500, 5000
SHOWN_DIGITS = 8  # length of a dataset's digest in MLflow's table of runs; the profile has the whole digest
SIGNIFICANT_DIGITS = 6  # MLflow displays every digit that it stores; the files in metrics/ and plots/ have the exact values


class Sender:
    """Sends the events of the journal `folder` to the MLflow run `run_id`.

    What MLflow refuses costs only itself: the rest of the event is sent. `refused` collects the reasons by what was refused.
    """

    def __init__(self, store: Store, run_id: str, folder: Path, refused: dict[str, str]) -> None:
        self._store, self._client, self._run_id, self._folder, self._refused = store, store.client, run_id, folder, refused
        self._present: dict[str, set[tuple[int, int, str]]] = {}

    def send(self, batch: list[events.Event]) -> None:
        """Send one event of any kind, or several consecutive events of the kind `metrics`. Raises MLflow's exception unless it is a refusal."""
        self._or_leave_out(f"event {batch[-1].kind}", partial(self._send, batch))

    def _send(self, batch: list[events.Event]) -> None:
        fields = batch[-1].fields
        match batch[-1].kind:
            case "metrics":
                self._log_points(batch)
            case "start" | "reopen":
                self._begin(fields)
            case "description":
                self._describe(fields["text"])
            case "artifact":
                self._or_leave_out(f"artifact {Path(fields['folder'], Path(fields['file']).name)}", partial(self._log_artifact, fields))
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

        The reason is set as the run's tag `pipeline.refused`, and kept in `delivered.json`. If the tag cannot be set, nothing was refused:
        MLflow is unreachable, or the run was deleted. Raises the exception of this attempt, and those that are no refusal.
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
                say(f"{self._folder.name}: {what} is left out: {reason}")

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
        `pipeline.changed.NAME` gets the new value. Params that are too long for MLflow are cut, and whole in `params/STAGE.json`.
        """
        from mlflow.entities import Param

        self._client.update_run(self._run_id, status="RUNNING")
        run = self._client.get_run(self._run_id).data
        params = {name: logged(value) for name, value in fields["params"].items()}
        self._log("param", [Param(name, value) for name, value in params.items() if name not in run.params])
        changed = {f"pipeline.changed.{name}": value for name, value in params.items() if run.params.get(name, value) != value}
        # If the run was created by the user, its existing `mlflow.*` tags are kept. Every run keeps the tag `mlflow.user`.
        kept = {name for name in run.tags if name == "mlflow.user" or (fields["kind"] == "start" and name.startswith("mlflow."))}
        self.tag({name: value for name, value in fields["tags"].items() if name not in kept} | changed)
        if FAILURE in run.tags:
            self._client.delete_tag(self._run_id, FAILURE)
            self._describe(f"running again, {fields.get('subject', '')}")
        for dataset in fields.get("datasets", []):
            self._or_leave_out(f"dataset {dataset['name']}", partial(self._log_dataset, dataset))
        cut = {name: value for name, value in fields["params"].items() if logged(value) != formatted(value)}
        for folder, content in (("provenance", fields.get("provenance")), ("params", cut)):
            if content:
                self._or_leave_out(folder, partial(self._client.log_dict, self._run_id, content, f"{folder}/{fields['stage']}.json"))

    def _describe(self, text: str) -> None:
        """Set the description of the run, unless a person edited it in MLflow."""
        tags = self._client.get_run(self._run_id).data.tags
        if NOTE_TAG not in tags or files.digest_of(tags[NOTE_TAG]) == tags.get(DESCRIBED_TAG):
            self.tag(describing(text))

    def _log_points(self, batch: list[events.Event]) -> None:
        from pipeline.runs.mlflow.saved_model import add_scores  # late: it imports numpy

        points: list[Metric] = []

        def add(event: events.Event) -> None:
            points.extend(metrics_of(event))

        for event in batch:
            self._or_leave_out(f"metrics of step {event.fields['step']}", partial(add, event))
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


def metrics_of(event: events.Event) -> "list[Metric]":
    """Return the values in an event of the kind `metrics` as MLflow's objects, rounded to `SIGNIFICANT_DIGITS`."""
    from mlflow.entities import Metric

    return [Metric(name, rounded(float(value)), event.time_ms, event.fields["step"]) for name, value in event.fields["values"].items()]


def identity(point: "Metric") -> tuple[int, int, str]:
    """Return what tells a point from the others of its metric. The value is a text, because NaN differs from itself."""
    return point.step, point.timestamp, str(point.value)


def rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
