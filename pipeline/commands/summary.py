"""Print the result of the last `dvc repro`, and wait until MLflow has its run.

A journal is the local record of a run, from which the run is sent to MLflow. If tracking is on and no journal has the run of this model,
create one.
"""

import shutil
from typing import Any

from pipeline.params.yaml_document import Document
from pipeline.paths import Paths
from pipeline.reports import recorded
from pipeline.runtime.environment import Environment
from pipeline.stages import run_description
from pipeline.tracking import comparison_view, journal, mirror_process
from pipeline.tracking import run as tracking
from pipeline.tracking.address import Address
from pipeline.tracking.cursor import Cursor


def run() -> None:
    paths, environment = Paths(), Environment.read()
    scores = recorded.scores(paths.metrics / "evaluate.json", paths.model)
    if environment.tracking and not tracking.journal_of(environment, paths.model):
        record_restored(paths, environment, scores)
    print(recorded.result_line(scores), flush=True)
    name = tracking.journal_of(environment, paths.model)
    print(f"model: {paths.model}    figures: {paths.plots}/" + (f"    run: {name}" if name else ""))
    if environment.tracking and environment.tracking_mirror and name:
        mirror_process.wait_for_all(environment)
        mirror_process.report(journal.journals_folder(environment.root) / name, environment)
    if hint := comparison_hint(environment, name):
        print(f"compare runs: {hint}")


def comparison_hint(environment: Environment, name: str | None) -> str:
    """Return where the user can compare the runs: a link to the MLflow server, or `make ui`, the command that starts the local UI.

    `name` is the name of the run's journal, the local record of a run, or None if the run has no journal. Returns the link if the server
    has received this run. Otherwise returns `make ui` or, if `make` is not installed, as in the container, "".
    """
    address = Address.of(environment)
    if address.is_server and name:
        experiment_id = Cursor.load(journal.journals_folder(environment.root) / name, address.key).experiment_id
        if experiment_id:
            return f"{address.shown}/{comparison_view.link(experiment_id)}"
    return "make ui" if shutil.which("make") else ""


def record_restored(paths: Paths, environment: Environment, scores: dict[str, Any]) -> None:
    """Create a journal, the local record of a run, for a result that DVC checked out without running a stage. `scores` are its scores."""
    from pipeline.engine import model_file  # late: torch takes seconds to import, and most summaries do not need it

    _, manifest = model_file.load(paths.model)
    run_description.record_evaluation(Document.read(paths.params).data, paths, environment, manifest=manifest, scores=scores)
