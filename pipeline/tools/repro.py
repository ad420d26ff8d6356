"""`python -m pipeline repro`: run check, `dvc repro` and the summary, which waits until MLflow has the run."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core import interruption
from pipeline.core.environment import SUMMARY_FOLLOWS, Environment, Paths
from pipeline.core.yaml_document import Document
from pipeline.evaluate.reports import recorded
from pipeline.runs import journal, run_description
from pipeline.runs import run as tracking
from pipeline.runs.events import Cursor
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.address import Address
from pipeline.tools import checkout_lock, supervision, ui
from pipeline.tools.check import command as check
from pipeline.tools.params import command as set_parameters

KILLED = 137
RESUMES = (
    "repro: a stage was killed, as the kernel does when memory runs out: repeat `python -m pipeline repro`, which continues a training after its last "
    "checkpoint and ends in the same bytes (docs/when-it-stops.md)"
)


def summarize() -> None:
    paths, environment = Paths(), Environment.read()
    scores = recorded.scores(paths.metrics / "evaluate.json", paths.model)
    if environment.tracking and not tracking.journal_of(environment, paths.model):
        record_restored(paths, environment, scores)
    print(recorded.result_line(scores), flush=True)
    name = tracking.journal_of(environment, paths.model)
    print(f"model: {paths.model}    figures: {paths.plots}/" + (f"    run: {name}" if name else ""))
    if environment.tracking and environment.tracking_mirror and name:
        mirror.wait(environment)
        mirror.report(journal.journals_folder(environment.root) / name, environment)
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
            return f"{address.shown}/{ui.runs_page(experiment_id)}"
    return "make ui" if shutil.which("make") else ""


def record_restored(paths: Paths, environment: Environment, scores: dict[str, Any]) -> None:
    """Create a journal, the local record of a run, for a result that DVC checked out without running a stage. `scores` are its scores."""
    from pipeline.inference import model_file  # late: torch takes seconds to import, and most summaries do not need it

    _, manifest = model_file.load(paths.model)
    run_description.record_evaluation(Document.read(paths.params).data, paths, environment, manifest=manifest, scores=scores)


def run(assignments: Sequence[str] = ()) -> int:
    """Run the command `check`, then `dvc repro` and, if DVC succeeds, the command `summary`. Return the exit code.

    If there are `assignments`, each `KEY=VALUE`, the command `set` first writes them into params.yaml, where they stay.

    Another command in this checkout waits until the end, or this one for it. Raises Refusal for bad input, or if another container is
    using the checkout.
    """
    with checkout_lock.alone(Path()) as lock:
        if assignments:
            set_parameters.change(assignments)
        check.run()
        if code := dvc_repro(lock):
            if code == KILLED:
                print(RESUMES, file=sys.stderr, flush=True)
            if code not in interruption.EXIT_CODES:
                mirror.wait(Environment.read())  # `train` has left this to the summary
            return code
        summarize()
    return 0


def dvc_repro(lock: int) -> int:
    """Run `dvc repro` and return its exit code, or that of the stage that failed, or 128 plus the number of the signal that stopped it.

    The DVC that stands beside this Python is run, and its stages run this Python. Wait until DVC has ended, even after a signal. `lock` is
    the file descriptor of the lock on the checkout, which DVC shares.
    """
    sys.stdout.flush()
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return supervision.run_all([("dvc", "repro")], {**os.environ, "PATH": search_path, SUMMARY_FOLLOWS: "true"}, top=Path(), lock=lock)
