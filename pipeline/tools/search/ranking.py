"""The ranked table of the trials of a search, on the terminal and as CSV, and their tracked runs: one for the search, one for each trial."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.refusal import counted
from pipeline.core.section import flatten
from pipeline.tools.search.settings import Search, Value
from pipeline.tools.search.trial import TRIAL_TAG, TrialFolder
from pipeline.tracking import journal, mirror_process, provenance
from pipeline.tracking.events import is_pending
from pipeline.tracking.journal import SEARCH_TAG, Journal, RunInfo
from pipeline.tracking.run_description import SOURCE, short, short_keys, subject
from pipeline.tracking.store import PARENT_TAG

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "unfinished"
ORDER = (COMPLETE, PRUNED, RUNNING, FAILED)


class Row(NamedTuple):
    """A trial in the table. `value` is the value of the metric, of a pruned trial the last one. `reason` says why a trial failed."""

    number: int
    outcome: str
    value: float | None
    step: int
    params: Mapping[str, Value]
    run: str
    reason: str = ""


def row_of(trial: "FrozenTrial") -> Row:
    """Return the row of a trial of the study."""
    from optuna.trial import TrialState

    outcomes = {TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED}
    outcome = outcomes.get(trial.state, RUNNING)
    value = trial.value if outcome in (COMPLETE, PRUNED) else None
    attributes = trial.user_attrs
    run = str(attributes.get("run", "")).rpartition("-")[2]
    return Row(trial.number, outcome, value, attributes.get("step", 0), trial.params, run, attributes.get("reason", ""))


def ranked(rows: Iterable[Row], *, is_better_lower: bool) -> list[Row]:
    """Sort trials: complete ones by value, then pruned ones by their last step, then the others. Of equal trials, the earlier is first."""

    def order(row: Row) -> tuple[int, int, float, int]:
        value = float("inf") if row.value is None else row.value if is_better_lower else -row.value
        return ORDER.index(row.outcome), -row.step if row.outcome != COMPLETE else 0, value, row.number

    return sorted(rows, key=order)


def best(rows: Sequence[Row]) -> Row | None:
    """Return the best trial of ranked rows; None if no trial is complete."""
    return rows[0] if rows and rows[0].outcome == COMPLETE else None


def described(params: Mapping[str, Value]) -> str:
    """Return parameters in short form, such as "lr=3e-3 width=16"."""
    names = short_keys(list(params))
    return " ".join(f"{names[key]}={shortened(value)}" for key, value in params.items())


def shortened(value: Value) -> str:
    return short(float(f"{value:.3g}")) if isinstance(value, float) else short(value)


def print_table(rows: Sequence[Row], metric: str, keys: Sequence[str]) -> None:
    """Print ranked rows as a table, and below it the reasons of failed trials. `keys` are the searched parameters."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = short_keys(keys)
    table = Table(box=SIMPLE_HEAD)
    titles = {"rank": "right", "trial": "right", metric: "right", "steps": "right", "outcome": "left"}
    for title in (*titles, *(names[key] for key in keys), "run"):
        table.add_column(Text(title), justify="right" if titles.get(title) == "right" else "left", no_wrap=True)
    for rank, row in enumerate(rows, 1):
        value = "" if row.value is None else f"{row.value:.4f}"
        params = [shortened(row.params[key]) if key in row.params else "" for key in keys]
        cells = [str(rank) if row.outcome == COMPLETE else "", str(row.number), value, str(row.step or ""), row.outcome, *params, row.run]
        table.add_row(*map(Text, cells))
    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)  # a file has no width: nothing is cut
    with console.capture() as rendered:
        console.print(table)
    print(*(line.rstrip() for line in rendered.get().splitlines()), sep="\n")  # rich fills each line with spaces
    for row in rows:
        if row.reason:
            print(f"trial {row.number} failed: {row.reason}")


def as_csv(rows: Sequence[Row], metric: str, keys: Sequence[str]) -> str:
    """Return ranked rows as CSV, with all digits. `keys` are the searched parameters."""
    cells = ((row.number, row.outcome, row.value, row.step, *(row.params.get(key) for key in keys), row.run, row.reason) for row in rows)
    return files.as_csv(["trial", "outcome", metric, "step", *keys, "run", "reason"], cells)


STAGE = "search"
PRUNED_TAG, BEST_TAG = "pipeline.pruned", "pipeline.best"


def of_search(search: Search, params: Mapping[str, Any], environment: Environment, search_id: str, *, num_trials: int) -> RunInfo:
    """Return the metadata of the parent run. `params` are the sections of `params.yaml`."""
    origin = provenance.gather(environment)
    return RunInfo(
        params=flatten({STAGE: search.document.data}),
        tags=SOURCE | provenance.tags(origin) | {SEARCH_TAG: search_id},
        provenance=origin,
        subject=subject(params),
        description=f"a search of {counted(num_trials, 'trial')}, {subject(params)}",
        name=f"search {search.settings.name}",
    )


class TrialRuns:
    """The runs of the trials. `parent` is the name of the parent run's journal, or None if tracking is off."""

    def __init__(self, name: str, search_id: str, parent: str | None, environment: Environment) -> None:
        self._name, self._search_id, self.parent, self._environment = name, search_id, parent, environment
        self._mirrors: dict[Path, subprocess.Popen[bytes]] = {}

    @property
    def journals(self) -> Path | None:
        """Return the folder of all journals; None if tracking is off. The journal of a trial is then in its own folder."""
        return journal.journals_folder(self._environment.root) if self.parent else None

    def tags(self, number: int, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the tags of a trial's run, with its name."""
        context = dict(self._environment.mlflow_run_context or {})
        name = f"{self._name} #{number} {described(params)}"
        parent = {PARENT_TAG: self.parent} if self.parent else {}
        return {**context, **parent, SEARCH_TAG: self._search_id, TRIAL_TAG: str(number), "mlflow.runName": name}

    def mirror(self, trial: TrialFolder) -> None:
        """Start the process that sends the trial's journal to MLflow, once the training has opened the journal."""
        starts = self.parent and self._environment.tracking_mirror
        if starts and (folder := trial.journal) and folder not in self._mirrors and journal.is_written(folder):
            process = self._quietly(lambda: mirror_process.start(folder.resolve(), self._environment))
            if isinstance(process, subprocess.Popen):
                self._mirrors[folder] = process

    def mark_pruned(self, trial: TrialFolder, validation: int, step: int) -> None:
        """Mark the run of a pruned trial by a tag and its description. Its status stays KILLED."""
        self._amend(trial, {PRUNED_TAG: "true"}, f"pruned after validation {validation}, step {step}", "KILLED", model=None)

    def mark_best(self, trial: TrialFolder) -> None:
        """Mark the run of the best trial by a tag, and add its model."""
        self._amend(trial, {BEST_TAG: "true"}, "", "FINISHED", model=trial.paths.model)

    def unmark_best(self, trial: TrialFolder) -> None:
        """Change the tag of a trial that was the best before the search was continued. Its run keeps the model."""
        self._amend(trial, {BEST_TAG: "false"}, "", "FINISHED", model=None)

    def _amend(self, trial: TrialFolder, tags: Mapping[str, str], description: str, status: journal.Status, model: Path | None) -> None:
        """Add tags, a description (unless it is "") and a model (unless it is None) to the trial's journal, and end it with `status`."""

        def append() -> None:
            assert folder
            amended = Journal.reopen(folder, stage=STAGE, info=RunInfo(tags=tags))
            try:
                if description:
                    amended.describe(description)
                if model and self._environment.tracking_model:
                    amended.model(model)
                amended.end(status)
            finally:
                amended.close()

        if folder := trial.journal:
            self._quietly(append)

    def wait(self, *, interrupted: bool) -> None:
        """Wait, with a time limit, until MLflow has the runs of the trials. The processes that still send then are killed.

        After an interruption, do not wait: these processes, or `sync`, deliver the rest.
        """
        if interrupted:
            return
        deadline_s = time.monotonic() + self._environment.tracking_wait_s
        for process in self._mirrors.values():
            with suppress(subprocess.TimeoutExpired):  # a process can hang in the kernel
                stop_mirror(process, max(0.0, deadline_s - time.monotonic()))
        self._mirrors.clear()

    def deliver(self, trials: list[TrialFolder]) -> None:
        """Send to MLflow what was added to the runs after their trainings, such as the best model.

        Wait for this with a time limit, and print how many of `trials` MLflow does not have completely then.
        """
        if not (self.parent and self._environment.tracking_mirror and any(is_pending(path) for trial in trials if (path := trial.journal))):
            return
        process = self._quietly(lambda: subprocess.Popen([sys.executable, "-m", "pipeline", "sync"], stdout=subprocess.DEVNULL))
        if isinstance(process, subprocess.Popen):
            with suppress(subprocess.TimeoutExpired):
                stop_mirror(process, self._environment.tracking_wait_s)
        if pending := [trial for trial in trials if (path := trial.journal) and is_pending(path)]:
            mirror_process.say(
                self._environment, f"{len(pending)} trials are not completely in MLflow yet: `python -m pipeline sync` delivers them"
            )

    def _quietly(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except Exception as error:  # tracking must never stop a search
            mirror_process.say(self._environment, f"the search continues: {type(error).__name__}: {error}")
            return None


def stop_mirror(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait at most `limit_s` seconds until the process ends, then kill it."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # safe at any time: the next delivery resumes
        process.wait(mirror_process.KILLED_WAIT_S)
