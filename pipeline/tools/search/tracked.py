"""The tracked runs of a search: one for the search, its parent run, and one for each trial."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.environment import Environment
from pipeline.core.observer import Net
from pipeline.core.refusal import counted
from pipeline.core.section import flatten
from pipeline.runs import journal, provenance
from pipeline.runs.events import is_pending
from pipeline.runs.journal import SEARCH_TAG, Journal, RunInfo
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.store import PARENT_TAG
from pipeline.runs.run_description import SOURCE, experiment, subject
from pipeline.tools.search.settings import Search, Value
from pipeline.tools.search.study import described
from pipeline.tools.search.trial import TRIAL_TAG, TrialFolder

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
        experiment=experiment(params),
    )


class TrialRuns:
    """The runs of the trials. `parent` is the name of the parent run's journal, or None if tracking is off."""

    def __init__(self, name: str, search_id: str, parent: str | None, environment: Environment) -> None:
        self._name, self._search_id, self._parent, self._environment = name, search_id, parent, environment
        self._is_mirrored = bool(parent) and environment.tracking_mirror
        self._mirrored: set[int] = set()
        # the folder of all journals; without tracking, the journal of a trial is in the trial's folder
        self.journals = journal.journals_folder(environment.root) if parent else None

    def tags(self, number: int, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the tags of a trial's run, with its name."""
        context = dict(self._environment.mlflow_run_context or {})
        name = f"{self._name} #{number} {described(params)}"
        parent = {PARENT_TAG: self._parent} if self._parent else {}
        return {**context, **parent, SEARCH_TAG: self._search_id, TRIAL_TAG: str(number), "mlflow.runName": name}

    def mirror(self, trial: TrialFolder) -> None:
        """Start the process that sends the trial's journal to MLflow, once the training has opened the journal."""
        if self._is_mirrored and trial.number not in self._mirrored and (folder := trial.journal) and journal.is_written(folder):
            self._mirrored.add(trial.number)
            with self._quietly():
                mirror.start(folder.resolve(), self._environment)

    def amend(
        self, trial: TrialFolder, tags: Mapping[str, str], status: journal.Status, *, description: str = "", model: Path | None = None
    ) -> None:
        """Add tags, a description (unless it is "") and a model (unless it is None) to the trial's journal, and end it with `status`."""
        if folder := trial.journal:
            with self._quietly(), closing(Journal.reopen(folder, stage=STAGE, info=RunInfo(tags=tags))) as amended:
                if description:
                    amended.describe(description)
                if model and self._environment.tracking_model:
                    amended.model(model)
                amended.end(status)

    def deliver(self, trials: Sequence[TrialFolder]) -> None:
        """Send to MLflow what was added to the runs after their trainings, such as the best model.

        Wait for this with a time limit, and print how many of `trials` MLflow does not have completely then.
        """

        def num_pending() -> int:
            return sum(1 for trial in trials if (path := trial.journal) and is_pending(path))

        if self._is_mirrored and num_pending():
            limit_s = self._environment.tracking_wait_s
            with self._quietly(), suppress(subprocess.TimeoutExpired):  # killed at the limit: the next delivery resumes
                subprocess.run([sys.executable, "-m", "pipeline", "sync"], stdout=subprocess.DEVNULL, timeout=limit_s, check=False)
            if left := num_pending():
                message = f"{left} trials are not in MLflow yet: `python -m pipeline sync` sends them"
                Address.of(self._environment).say(message, failed=True)

    def _quietly(self) -> Net:
        return Net(partial(mirror.say_failure, self._environment, "the search continues"))
