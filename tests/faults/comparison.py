"""What MLflow holds of a run, and what its journal says that it should."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runs import events
from pipeline.runs.mlflow.delivery import rounded

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Point = tuple[str, int, str, int]
OF_THIS_RUN = {"pipeline.journal", "mlflow.runName"}
"""Tags that no other run shares."""


@dataclass(frozen=True)
class Held:
    points: list[Point]
    rest: dict[str, Any]

    @property
    def without_times(self) -> tuple[list[tuple[str, int, str]], dict[str, Any]]:
        """What two runs of the same training share; the machine's load is each run's own."""
        return [point[:3] for point in self.points if not point[0].startswith("system/")], self.rest


def held(client: "MlflowClient", journal: str, downloads: Path) -> Held:
    """Raises unless MLflow has exactly one run of the journal."""
    run = only_run(client, journal)
    run_id = run.info.run_id
    points = [
        (name, point.step, shown(point.value), point.timestamp)
        for name in run.data.metrics
        for point in client.get_metric_history(run_id, name)
    ]
    tags = {name: value for name, value in run.data.tags.items() if name not in OF_THIS_RUN}
    models = client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'")
    rest = {
        "params": run.data.params,
        "tags": tags,
        "status": run.info.status,
        "name": run.info.run_name,
        "datasets": [(used.dataset.name, used.dataset.digest) for used in run.inputs.dataset_inputs],
        "models": [model.status.name for model in models],
        "tied": len(run.outputs.model_outputs) if run.outputs else 0,
        "artifacts": digests(Path(client.download_artifacts(run_id, "", str(downloads)))),
    }
    return Held(sorted(points), rest)


def only_run(client: "MlflowClient", journal: str) -> "Run":
    experiments = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"tags.`pipeline.journal` = '{journal}'")
    return client.get_run(run.info.run_id)


def journalled(folder: Path) -> list[Point]:
    """Every point of a journal and of the machine's load beside it, with its time."""
    lines = [*events.read(folder / events.EVENTS), *events.read(folder / events.SYSTEM)]
    return sorted(
        (name, line.fields["step"], shown(rounded(float(value))), line.time_ms)
        for line in lines
        if line.kind == "metrics"
        for name, value in line.fields["values"].items()
    )


def shown(value: float | str) -> str:
    """MLflow stores infinity as the largest number."""
    return repr(min(float(value), sys.float_info.max))


def digests(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
