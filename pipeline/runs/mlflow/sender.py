"""Sends the events of a journal to MLflow: each kind of event is one or more calls of MLflow's client."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import files
from pipeline.runs import events
from pipeline.runs.mlflow.store import DESCRIBED_TAG, MODEL_TAG, NOTE_TAG, describing, logged, say
from pipeline.runs.record import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

FAILURE = "pipeline.failure"
"""A tag of a run that failed: the reason."""
SHOWN_DIGITS = 8  # length of a dataset's digest in MLflow's table of runs; the profile has the whole digest
SIGNIFICANT_DIGITS = 6  # MLflow displays every digit that it stores; the files in metrics/ and plots/ have the exact values


class Sender:
    """Sends the events of the journal `folder` to the MLflow run `run_id`."""

    def __init__(self, client: "MlflowClient", run_id: str, folder: Path) -> None:
        self._client, self._run_id, self._folder = client, run_id, folder

    def send(self, batch: list[events.Event]) -> None:
        """Send one event of any kind, or several consecutive events of the kind `metrics`.

        Raises LookupError if the journal no longer has the file of an event, and the run does not have it either. Passes on the exceptions
        of MLflow, and Refusal for a model that cannot be loaded.
        """
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
            case "end":
                if reason := fields.get("reason"):
                    self.tag({FAILURE: reason})
                    self._describe(f"failed: {reason}")
                self._client.set_terminated(self._run_id, fields["status"], end_time=batch[-1].time_ms)
            case kind:
                say(f"{self._folder.name}: skipped an event of the kind {kind}, which this version of the pipeline does not know")

    def _begin(self, fields: Mapping[str, Any]) -> None:
        """Send an event `start` or `reopen`. Set the run's status to RUNNING, and log the params, tags, datasets and provenance in
        `fields`, the fields of the event.

        MLflow's params cannot change. If the run already has another value of the param NAME, that value stays, and the tag
        `pipeline.changed.NAME` gets the new value.
        """
        from mlflow.entities import Param

        self._client.update_run(self._run_id, status="RUNNING")
        run = self._client.get_run(self._run_id).data
        params = {name: logged(value) for name, value in fields["params"].items()}
        self._client.log_batch(self._run_id, params=[Param(name, value) for name, value in params.items() if name not in run.params])
        changed = {f"pipeline.changed.{name}": value for name, value in params.items() if run.params.get(name, value) != value}
        # If the run was created by the user, its existing `mlflow.*` tags are kept. Every run keeps the tag `mlflow.user`.
        kept = {name for name in run.tags if name == "mlflow.user" or (fields["kind"] == "start" and name.startswith("mlflow."))}
        self.tag({name: value for name, value in fields["tags"].items() if name not in kept} | changed)
        if FAILURE in run.tags:
            self._client.delete_tag(self._run_id, FAILURE)
            self._describe(f"running again, {fields.get('subject', '')}")
        for dataset in fields.get("datasets", []):
            self._log_dataset(dataset)
        if fields.get("provenance"):
            self._client.log_dict(self._run_id, fields["provenance"], f"provenance/{fields['stage']}.json")

    def _describe(self, text: str) -> None:
        """Set the description of the run, unless a person edited it in MLflow."""
        tags = self._client.get_run(self._run_id).data.tags
        if NOTE_TAG not in tags or files.digest_of(tags[NOTE_TAG]) == tags.get(DESCRIBED_TAG):
            self.tag(describing(text))

    def _log_points(self, batch: list[events.Event]) -> None:
        from pipeline.runs.mlflow.saved_model import add_scores  # late: it imports numpy

        points = [point for event in batch for point in metrics_of(event)]
        # MLflow compares runs by the metric that was logged first.
        points.sort(key=lambda point: (not point.key.startswith("valid/"), point.key))
        self._client.log_batch(self._run_id, metrics=points)
        add_scores(self._client, self._run_id, points)

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        self._client.log_batch(self._run_id, tags=[RunTag(name, str(value)) for name, value in tags.items()])

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
            raise LookupError(f"{fields['file']} was removed from the journal after another MLflow store had received it")

    def _log_model(self, fields: Mapping[str, Any]) -> None:
        from pipeline.runs.mlflow.saved_model import log_model

        self.tag({MODEL_TAG: fields["sha256"]})
        path, digest, step = self._folder / fields["file"], fields["sha256"], fields["step"]
        lines = Record(self._folder).events
        points = [point for line in lines if line.kind == "metrics" and line.fields["step"] == step for point in metrics_of(line)]
        log_model(self._client, self._run_id, path, digest=digest, step=step, points=points)


def metrics_of(event: events.Event) -> "list[Metric]":
    """Return the values in an event of the kind `metrics` as MLflow's objects, rounded to `SIGNIFICANT_DIGITS`."""
    from mlflow.entities import Metric

    return [Metric(name, rounded(float(value)), event.time_ms, event.fields["step"]) for name, value in event.fields["values"].items()]


def rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
