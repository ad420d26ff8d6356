"""Tracks a run for the stages that call it. No call raises an exception because tracking failed. Only the end of a run waits for MLflow, and only if
nothing that follows does.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.interruption import Interrupted
from pipeline.core.observer import Net
from pipeline.core.refusal import Refusal
from pipeline.runs import journal, record
from pipeline.runs.journal import Journal, RunInfo, Status
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.address import Address

LONGEST_REASON = 500


class Run:
    """One tracked run. What a stage logs is written to the run's journal, or discarded if tracking is off or the journal cannot be opened."""

    def __init__(self, environment: Environment, open_journal: Callable[[], Journal] | None = None) -> None:
        """Open a journal by `open_journal`, and start its mirror process, unless there is one. If `open_journal` is None, tracking is off."""
        self._environment = environment
        self._net = Net(self._report)
        self._journal: Journal | None = None
        self._mirror: subprocess.Popen[bytes] | None = None
        self._has_mirror = False
        if open_journal:
            with self._net:
                self._journal = open_journal()
                folder = self._journal.folder
                if environment.tracking_mirror:
                    # the mirror of `train` is still there when `evaluate` begins
                    self._has_mirror = journal.is_mirrored(folder)
                    self._mirror = None if self._has_mirror else mirror.start(folder, environment)

    def _report(self, error: Exception) -> None:
        message = f"the run continues, but its journal is incomplete: {type(error).__name__}: {error}"
        Address.of(self._environment).say(message, failed=True)

    @property
    def folder(self) -> Path | None:
        """Return the folder of the journal; None if the run has no journal."""
        return self._journal.folder if self._journal else None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of metrics, by name, at a step. Values that a resumed training repeats are left out."""
        self._write(lambda journal: journal.metrics(step, values))

    def artifact(self, path: Path, folder: str = "") -> None:
        """Log a copy of a file to the artifact folder `folder` in MLflow ("" is the top)."""
        self._write(lambda journal: journal.artifact(path, folder))

    def text(self, name: str, text: str, folder: str = "") -> None:
        """Log a text as a file called `name` to the artifact folder `folder` in MLflow ("" is the top)."""
        self._write(lambda journal: journal.text(name, text.encode(), folder))

    def describe(self, text: str) -> None:
        """Set the description of the run, unless a person edited it in MLflow."""
        self._write(lambda journal: journal.describe(text))

    def model(self, path: Path) -> None:
        """Log a copy of the model file, unless PIPELINE_TRACKING_MODEL is false."""
        if self._environment.tracking_model:
            self._write(lambda journal: journal.model(path))

    def end(self, status: Status, *, is_followed: bool, reason: str = "") -> None:
        """Record the status and the reason of a failure, and close the journal. Then wait, with a time limit, until the whole journal is in MLflow.

        After an interruption, and if `is_followed` is True because something that follows waits, leave this to the mirror process.
        """
        self._write(lambda journal: journal.end(status, reason))
        self._write(lambda journal: journal.close())
        if not self.folder or not (self._mirror or self._has_mirror):
            return
        with self._net:
            if status == "KILLED":
                rest = f"`python -m pipeline sync` delivers what MLflow does not have yet of run {self.folder.name}"
                Address.of(self._environment).say(rest, failed=True)
                return
            if self._mirror:
                mirror.wait_for_start(self._mirror, self.folder, self._environment)
            if status == "FAILED" or not is_followed:
                mirror.wait(self._environment, self.folder)
                mirror.stop(self._mirror)
                mirror.report(self.folder, self._environment)

    def _write(self, write: Callable[[Journal], None]) -> None:
        if self._journal:
            with self._net:
                write(self._journal)


def training(environment: Environment, *, resume_file: Path, info: RunInfo, stage: str = "train") -> AbstractContextManager[Run]:
    """Track a training as one run, even if it is interrupted and resumed.

    The file `resume_file` contains the name of the training's journal, which is reopened. If this file does not exist, create a journal
    and write its name to the file. `info` is the metadata of the run, and `stage` the name of the stage. In `dvc repro`, the end does not
    wait for MLflow, because `evaluate` or the verb `summary` does.
    """

    def open_journal() -> Journal:
        name = resume_file.read_text(encoding="utf-8").strip() if resume_file.is_file() else ""
        folder = journal.journals_folder(environment.root) / name
        if name and journal.has_begun(folder):
            return Journal.reopen(folder, stage=stage, info=info)
        name = name or journal.new_name(environment.root)
        files.write_text(resume_file, name + "\n")  # first: after a kill in between, an unnamed journal would become a second run
        experiment = environment.mlflow_experiment_name or info.experiment
        return Journal.create(environment.root, name=name, stage=stage, info=info, experiment=experiment)

    return tracked(environment, open_journal, is_followed=environment.summary_follows or bool(environment.dvc_stage))


def addition(environment: Environment, model: Path, *, info: RunInfo) -> AbstractContextManager[Run]:
    """Record an evaluation of the model file `model` in the run that trained it.

    `info` is the metadata to add. Reopen the journal of that run. If this checkout does not have that journal, or another process is writing
    it, create a new journal. The new journal is sent to the run that trained the model. If MLflow does not have that run, it becomes a new
    run.
    """

    def open_journal() -> Journal:
        digest = files.digest(model)
        if found := record.run_of_model(environment.root, digest):
            with suppress(BlockingIOError):  # another process is writing this journal
                return Journal.reopen(found.folder, stage=record.EVALUATE, info=info, amends=True)
        experiment = environment.mlflow_experiment_name or info.experiment
        new = Journal.create(environment.root, stage=record.EVALUATE, info=info, experiment=experiment, model_sha256=digest)
        new.model(model)  # has no effect if the run in MLflow already has the model
        return new

    return tracked(environment, open_journal, is_followed=environment.summary_follows)


@contextmanager
def tracked(environment: Environment, open_journal: Callable[[], Journal], *, is_followed: bool) -> Iterator[Run]:
    """Yield a run, and end it after the block. Its status is FINISHED, KILLED after an interruption, or FAILED after another exception."""
    run = Run(environment, open_journal if environment.tracking else None)
    status: Status = "FINISHED"
    reason = ""
    try:
        yield run
    except BaseException as error:
        status = "KILLED" if isinstance(error, (KeyboardInterrupt, Interrupted)) else "FAILED"
        reason = failure(error, environment) if status == "FAILED" else ""
        raise
    finally:
        run.end(status, is_followed=is_followed, reason=reason)


def failure(error: BaseException, environment: Environment) -> str:
    """Return why a run failed, for MLflow: without secrets and without the path of the checkout, which others should not see."""
    text = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
    return Address.of(environment).redacted(text.replace(f"{environment.root.resolve()}/", ""))[:LONGEST_REASON]


def journal_of(environment: Environment, model: Path) -> str | None:
    """Return the name of the newest journal that recorded the model file `model`; None if there is none."""
    found = record.run_of_model(environment.root, files.digest(model))
    return found.name if found else None
