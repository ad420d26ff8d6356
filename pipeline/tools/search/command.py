"""`search FILE`: search for the best hyperparameters: read the search file, run the trials, also those that a killed search left, and print all
of them, the best first.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core import files, interruption
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import load
from pipeline.core.prepared import PreparedRecord, read_record
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted, rounded
from pipeline.core.section import flatten
from pipeline.core.yaml_document import Document
from pipeline.runs import events, journal, provenance
from pipeline.runs import run as tracking
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.address import Address
from pipeline.runs.mlflow.store import PARENT_TAG
from pipeline.runs.record import Record
from pipeline.runs.run_description import SOURCE, experiment, subject
from pipeline.tools import checkout_lock
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.tools.search import study
from pipeline.tools.search.settings import Search, identity_of, replaced
from pipeline.tools.search.trial import EVALUATE, PREPARE, TRAIN, TrialFolder, devices, start
from pipeline.train.params import LoopSettings

POLL_S = 0.1
STAGE, TABLE, LOCK = "search", "trials.csv", "lock"


def run(file: str, trials: int | None, apply: bool, keep_models: bool) -> int:
    """Run the remaining trials of the search file and print the ranked table. Return 0 if a trial is complete, else 1.

    `trials` replaces the number in the file. With `apply`, write the parameters of the best trial to params.yaml. With `keep_models`, keep
    the models of all trials, not only that of the best.

    Raises Refusal for invalid input, before anything is trained, and for a trial that failed for another reason than its parameters. Raises
    Interrupted after a signal. The same command continues the search after both.
    """
    if trials is not None and trials < 1:
        raise Refusal(f"--trials: is {trials}: write 1 or more")
    if find_spec("optuna") is None:
        raise Refusal("Optuna is not installed: run `make setup-search`")
    paths, environment = Paths(), Environment.read()
    params = Document.read(paths.params)
    for stage_params in STAGE_PARAMS.values():
        load(params, stage_params, sections_with_torch="never")
    search = Search.read(Path(file), params)
    if apply and search.repeated:
        raise Refusal(f"--apply: the trials differ in {' and '.join(search.repeated)}, and the best would be so by chance: leave it out")
    record = read_record(paths.prepared)
    if VALID not in record.splits and "source.fold" not in search.settings.space:
        raise Refusal(f"{paths.prepared}: has no validation split, which a search needs: raise source.valid, and run `dvc repro prepare`")
    folder = (environment.dvc_root or Path()) / ".pipeline/search" / search.settings.name
    with files.locked(folder / LOCK, wait=False) as is_mine:
        if not is_mine:
            raise Refusal(f"{folder}: another process is running this search: wait for it, stop it, or write another `name:` into the file")
        files.sweep(folder)
        most = trials or search.settings.trials
        num_trials = min(most, len(search.grid) or most)
        runner = SearchRunner(search, params, record, folder, environment, num_trials, keep_models or bool(search.repeated))
        with closing(runner.study):
            runner.run()
            return conclude(runner, file, apply=apply)


@dataclass
class SearchRunner:
    """A search that runs in this process. The process holds the lock of the search."""

    search: Search
    params: Document
    record: PreparedRecord
    folder: Path
    environment: Environment
    num_trials: int
    keeps_models: bool
    parent: Path | None = None
    """The journal of the run of the search; None before it runs, and if tracking is off."""

    def __post_init__(self) -> None:
        from pipeline.inference.measuring import directions  # late: metrics import torch

        prepares = any(key.startswith("source.") for key in self.search.settings.space)
        self.stages = [*([PREPARE] if prepares else []), TRAIN, *([EVALUATE] if self.search.repeated else [])]
        self.children, self.mirrored = list[subprocess.Popen[bytes]](), set[int]()
        loop = self.params.data["train"]
        metrics = {**self.record.spec.targets.metrics, **directions(loop["metrics"])}
        self.metric, self.direction = self.search.target(metrics, loop["metric"])
        num_validations = -(-self.num_steps(self.params.data) // int(loop["validate_every_steps"]))
        path = self.folder / study.FILE
        self.study = study.Study(path, self.search, self.direction, identity=self.identity(), num_validations=num_validations)

    def identity(self) -> dict[str, Any]:
        return identity_of(self.search, self.params, self.stages, metric=self.metric, direction=self.direction)

    def num_steps(self, document: Mapping[str, Any]) -> int:
        return LoopSettings.model_validate_json(files.canonical(document["train"])).num_steps(self.record.splits[TRAIN].samples)

    def trial(self, number: int) -> TrialFolder:
        return TrialFolder(self.folder / f"trials/{number:04}", self.stages)

    @property
    def table(self) -> list[dict[str, Any]]:
        return study.table(self.study.ranked(), self.metric, self.search)

    def run(self) -> None:
        """Run all trials that are left, and add the results to the run of the search. The table is written last: until then, this is repeated."""
        num_begun, path = len(self.study.trials), self.folder / TABLE
        if num_begun < self.num_trials or not path.is_file() or path.read_text(encoding="utf-8") != study.as_csv(self.table):
            purpose = f"that differ in {' and '.join(self.search.repeated)}" if self.search.repeated else f"for the best {self.metric}"
            num_left = len(self.study.running)
            resumed = f"; {num_begun - num_left} are finished, {num_left} will be resumed" if num_begun else ""
            begun = f"search {self.search.settings.name}: {counted(self.num_trials, 'trial')} {purpose}"
            print(f"{begun}, {self.search.settings.processes} at a time{resumed}", flush=True)
            tracking_run = tracking.training(self.environment, resume_file=self.folder / "run", info=self.info(), stage=STAGE)
            with interruption.deferred() as interrupted, tracking_run as tracked:
                self.parent = tracked.folder
                try:
                    self.run_trials(interrupted)
                finally:
                    if interrupted.number is not None:
                        print("search: stopping the trials: the same command resumes them", flush=True)
                    for child in self.children:
                        child.terminate()
                    for child in self.children:
                        child.wait()
                self.add_results(tracked)
            self.deliver()
            files.write_text(path, study.as_csv(self.table))
        self.tidy()

    def info(self) -> journal.RunInfo:
        """Return the metadata of the run of the search."""
        origin = provenance.gather(self.environment)
        return journal.RunInfo(
            params=flatten({STAGE: self.search.document.data}),
            tags=SOURCE | provenance.tags(origin) | {journal.SEARCH_TAG: self.search.settings.name},
            provenance=origin,
            description=f"a search of {counted(self.num_trials, 'trial')}, {subject(self.params.data)}",
            name=f"search {self.search.settings.name}",
            experiment=experiment(self.params.data),
        )

    def run_trials(self, interrupted: interruption.Interruption) -> None:
        """Begin trials, and run them until none is left. Trials that a killed search left come first."""
        left, free = self.study.running, devices(self.environment, self.search.settings.processes)
        running = dict[int, tuple[Iterator[None], str | None]]()
        while left or running or len(self.study.trials) < self.num_trials:
            interrupted.pause()
            while free and (left or len(self.study.trials) < self.num_trials):
                number, device = left.pop(0) if left else self.study.begin(), free.pop(0)
                running[number] = self.run_trial(self.trial(number), device), device
            for number, (trial, device) in list(running.items()):
                if next(trial, True):
                    del running[number]
                    free.append(device)
                    self.report(number)
            if running:
                time.sleep(POLL_S)

    def run_trial(self, trial: TrialFolder, device: str | None) -> Iterator[None]:
        """Run the stages of a trial that have not ended yet, and record its outcome in the study. Yield while the process of a stage runs.

        A decision to prune the trial depends only on its validations, and not on the time at which this process reads them. A trial that
        has made its last step is not pruned. Raises Refusal if the data, the lock file or the code has changed since the search began, or if
        the process of a stage ended for another reason than the parameters of the trial.
        """
        params = self.study.trials[trial.number].params
        try:
            text = replaced(self.search.params, params)
        except Refusal as refused:  # each value is valid by itself
            self.study.finish(trial, "FAIL", reason=refused.on_one_line)
            return
        trial.write(text, self.parent)
        last_step = self.num_steps(Document.of(text, trial.paths.params).data)
        is_pruned = self.should_prune(trial, last_step)
        while trial.left and not is_pruned:
            self.study.refuse_changed(self.identity())  # the data, the lock file or the code may be edited meanwhile
            stage = trial.left[0]
            if stage != PREPARE and sizes_and_test(read_record(trial.paths.prepared)) != sizes_and_test(self.record):
                raise Refusal(f"{Paths().prepared}: source.root has changed since it was made: undo the change, or run `dvc repro prepare`")
            child = start(trial, device, self.tags(trial.number, params))
            self.children.append(child)
            has_ended = False
            while not (has_ended or is_pruned):
                yield
                has_ended = child.poll() is not None  # before the journal is read to its end
                self.mirror(trial)
                is_pruned = self.should_prune(trial, last_step)
            if is_pruned:
                child.terminate()
                child.wait()
            elif stage in trial.left:
                self.study.finish(trial, "FAIL", reason=trial.failure(child.returncode))
                return
        if is_pruned:
            self.study.finish(trial, "PRUNED")
            return
        metrics, trial.step = trial.exported()
        if self.metric not in metrics:
            self.study.finish(trial, "FAIL", reason=f"the validation after step {trial.step} does not determine {self.metric}")
            return
        more = {"scores": trial.scores()} if self.search.repeated else {}
        self.study.finish(trial, "COMPLETE", metrics[self.metric], **more)

    def should_prune(self, trial: TrialFolder, last_step: int) -> bool:
        """Read the new validations of a trial one by one, until the study asks to prune the trial."""
        return any(self.study.should_prune(trial.values) and step < last_step for step in trial.validations(self.metric))

    def tags(self, number: int, params: Mapping[str, Any]) -> dict[str, str]:
        """Return the tags of a trial's run, with its name."""
        context, name = self.environment.mlflow_run_context or {}, self.search.settings.name
        parent = {PARENT_TAG: self.parent.name} if self.parent else {}
        run_name = f"{name} #{number} {study.described(params)}"
        return {**context, **parent, journal.SEARCH_TAG: name, "pipeline.trial": str(number), "mlflow.runName": run_name}

    def mirror(self, trial: TrialFolder) -> None:
        """Start the process that sends the trial's journal to MLflow while the training writes it, once MLflow has the run of the search: only
        then can the trial's run become a child of it. What is not sent in this way is sent by `deliver`.
        """
        is_due = self.environment.tracking_mirror and trial.number not in self.mirrored and self.parent and events.read_stores(self.parent)
        if is_due and (folder := trial.journal) and journal.is_written(folder):
            self.mirrored.add(trial.number)
            with suppress(OSError):  # `deliver` tries again
                mirror.start(folder.resolve(), self.environment)

    def deliver(self) -> None:
        """Add the model of the best trial to its run, unless it has it, and send to MLflow what it does not have of all runs, with a time limit."""
        environment, best = self.environment, self.study.best()
        mirror.wait(environment)
        if best and (folder := self.trial(best.number).journal) and not Record(folder).digest:
            reopen = partial(journal.Journal.reopen, folder, stage=STAGE, info=journal.RunInfo())
            with tracking.tracked(environment.model_copy(update={"tracking_mirror": False}), reopen, is_followed=True) as run_of_best:
                run_of_best.model(self.trial(best.number).paths.model)
        if self.parent and environment.tracking_mirror:
            try:
                command = [sys.executable, "-m", "pipeline", "sync"]
                subprocess.run(command, stdout=subprocess.DEVNULL, timeout=environment.tracking_wait_s, check=True)
            except (OSError, subprocess.SubprocessError):  # killed at the limit: the next delivery resumes
                Address.of(environment).say("MLflow does not have all trials yet: `python -m pipeline sync` sends them", failed=True)

    def report(self, number: int) -> None:
        """Print the outcome of a trial, and remove files that are no longer needed."""
        trials, best = self.study.trials, self.study.best()
        trial, num_finished = trials[number], sum(each.state.is_finished() for each in trials)
        step, reason = (trial.user_attrs.get(key, "") for key in ("step", "reason"))
        value = "" if trial.value is None else f" {self.metric} {rounded(trial.value)} at step {step}"
        best_so_far = f"; best {rounded(best.value)} by trial {best.number}" if best and best.value is not None else ""
        print(
            f"search: trial {number} {study.OUTCOMES[trial.state.name]}:{value}{reason and f' {reason}'}; {study.described(trial.params)} "
            f"({num_finished} of {self.num_trials}{best_so_far})",
            flush=True,
        )
        self.tidy()

    def add_results(self, tracked: tracking.Run) -> None:
        """Add the table to the run of the search.

        If all trials repeat one training, the parent run has the mean of each metric, under the name of the metric, and its deviation.
        """
        trials, best = self.study.trials, self.study.best()
        if best and best.value is not None:
            of = f"{counted(len(trials), 'trial')}: trial {best.number}, {study.described(best.params)}"
            tracked.describe(f"best {self.metric} {rounded(best.value)} of {of}")
        if self.search.repeated and len(found := self.repetitions()) == 1 and (spreads := found[0].spreads):
            for name, each in spreads.items():
                tracked.metrics(len(trials), {name: each.mean, f"{name}_deviation": each.deviation})
        tracked.text(TABLE, study.as_csv(self.table))
        tracked.artifact(self.search.document.path)
        tracked.text(self.params.path.name, self.search.params)  # the file may have been edited since

    def repetitions(self) -> list[study.Repetition]:
        return study.repetitions(self.study.trials, self.params.data["source"]["folds"])

    def tidy(self) -> None:
        """Remove the checkpoints of all finished trials, and their models except that of the best trial."""
        best = self.study.best()
        for each in self.study.trials:
            if each.state.is_finished():
                trial = self.trial(each.number)
                trial.remove_checkpoints()
                if not self.keeps_models and not (best and best.number == each.number):
                    trial.paths.model.unlink(missing_ok=True)


def sizes_and_test(record: PreparedRecord) -> tuple[int, str]:
    """Return what all folds have in common: the number of samples, and the targets of the test split. Its inputs may have another tokenizer."""
    return sum(split.samples for split in record.splits.values()), record.splits[TEST].targets_digest


def conclude(runner: SearchRunner, file: str, *, apply: bool) -> int:
    """Print the table and the best trial, or the means of trials that repeat a training. Return 0 if a trial is complete, else 1.

    With `apply`, write the parameters of the best trial to params.yaml. Raises Refusal then if no trial is complete, or if
    the file has been edited while the search ran.
    """
    search, target, best = runner.search, runner.params.path, runner.study.best()
    study.print_table(runner.table, runner.metric, search)
    if search.repeated:
        for repetition in runner.repetitions():
            study.print_spreads(repetition, search.repeated)
    if apply and not best:
        raise Refusal("no trial is complete, so no parameters can be applied: see above why the trials failed, or add trials by --trials")
    if not best:
        return 0 if search.repeated and any(trial.state.name == "COMPLETE" for trial in runner.study.trials) else 1
    print(f"best: trial {best.number}, {study.described(best.params)}; model: {runner.trial(best.number).paths.model}")
    if not apply:
        print(f"`python -m pipeline search {file} --apply` writes its parameters to {target}; `dvc repro` then trains it again")
        return 0
    with checkout_lock.alone(Path()):
        if target.read_text(encoding="utf-8") != search.params:
            raise Refusal(f"{target}: has been edited while the search ran, and is left as it is: repeat the command with --apply")
        files.write_text(target, replaced(search.params, best.params))
    print(f"{target} now has the parameters of trial {best.number}; `git diff {target}` shows them")
    return 0
