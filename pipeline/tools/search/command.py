"""`search FILE`: search for the best hyperparameters: read the search file, run the trials, also those that a killed search left, and print all
of them, the best first.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import files, interruption
from pipeline.core.environment import Environment, Paths
from pipeline.core.interruption import Interrupted, Interruption
from pipeline.core.limits import usable_cpus
from pipeline.core.params import load
from pipeline.core.prepared import PreparedRecord, read_record
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Problem, Refusal, counted
from pipeline.core.yaml_document import Document
from pipeline.inference.digits import rounded
from pipeline.runs import run as tracking
from pipeline.runs.mlflow import mirror
from pipeline.runs.run import Run
from pipeline.runs.run_description import subject
from pipeline.tools import checkout_lock
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.tools.search import study
from pipeline.tools.search.settings import REPEATING, Search, identity_of
from pipeline.tools.search.study import OUTCOMES, Repetition, State, Study
from pipeline.tools.search.tracked import BEST_TAG, PRUNED_TAG, STAGE, TrialRuns, of_search
from pipeline.tools.search.trial import EVALUATE, PREPARE, TRAIN, TrialFolder, devices, start
from pipeline.train.params import LoopSettings

POLL_S = 0.1
TABLE, LOCK = "trials.csv", "lock"


def run(file: str, trials: int | None, apply: bool, keep_models: bool, skip: int | None) -> int:
    """Run the remaining trials of the search file and print the ranked table. Return 0 if a trial is complete, else 1.

    `trials` replaces the number in the file. With `apply`, write the parameters of the best trial to params.yaml. With `keep_models`, keep
    the models of all trials, not only that of the best. `skip` is the number of an unfinished trial to mark as failed.

    Raises Refusal for invalid input, before anything is trained, and for a trial that failed for another reason than its parameters. Raises
    Interrupted after a signal. The same command continues the search after both.
    """
    if trials is not None and trials < 1:
        raise Refusal(f"--trials: is {trials}: write 1 or more")
    study.refuse_missing_optuna()
    paths, environment = Paths(), Environment.read()
    params = Document.read(paths.params)
    for stage_params in STAGE_PARAMS.values():
        load(params, stage_params, sections_with_torch="never")
    search = Search.read(Path(file), params)
    if apply and search.repeated:
        raise Refusal(f"--apply: the trials differ in {' and '.join(search.repeated)}, and the best would be so by chance: leave it out")
    record = read_record(paths.prepared)
    if VALID not in record.splits and "source.fold" not in search.space:
        raise Refusal(f"{paths.prepared}: has no validation split, which a search needs: raise source.valid, and run `dvc repro prepare`")
    folder = (environment.dvc_root or Path()) / ".pipeline/search" / search.settings.name
    with files.locked(folder / LOCK, wait=False) as is_mine:
        if not is_mine:
            raise Refusal(f"{folder}: another process is running this search: wait for it, stop it, or write another `name:` into the file")
        files.sweep(folder)
        most = trials or search.settings.trials
        num_trials = min(most, len(search.grid) or most)
        runner = SearchRunner(search, params, record, folder, environment, num_trials, keep_models or bool(search.repeated))
        try:
            if skip is not None:
                runner.skip(skip)
            runner.run()
            return conclude(runner, file, apply=apply)
        finally:
            runner.study.close()


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

    def __post_init__(self) -> None:
        from pipeline.inference.measuring import directions  # late: metrics import torch

        prepares = any(key.startswith("source.") for key in self.search.space)
        self.stages = [*([PREPARE] if prepares else []), TRAIN, *([EVALUATE] if self.search.repeated else [])]
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        loop = self.params.data["train"]
        metrics = {**self.record.spec.targets.metrics, **directions(loop["metrics"])}
        self.metric, self.direction = self.search.target(metrics, loop["metric"])
        num_validations = -(-self.num_steps(self.params.data) // int(loop["validate_every_steps"]))
        path = self.folder / study.FILE
        self.study = Study(path, self.search, self.direction, identity=self.identity(), num_validations=num_validations)

    def identity(self) -> dict[str, Any]:
        return identity_of(self.search, self.params, Paths(), metric=self.metric, direction=self.direction)

    def num_steps(self, document: Mapping[str, Any]) -> int:
        return LoopSettings.model_validate_json(files.canonical(document["train"])).num_steps(self.record.splits[TRAIN].samples)

    def trial(self, number: int) -> TrialFolder:
        return TrialFolder(self.folder / f"trials/{number:04}", self.study.id, self.stages)

    def run(self) -> None:
        """Run all trials that are left."""
        num_begun = len(self.study.trials)
        if self.study.running or num_begun < self.num_trials or self.study.concluded.get("trials") != num_begun:
            self.print_begin(num_begun)
            info = of_search(self.search, self.params.data, self.environment, self.study.id, num_trials=self.num_trials)
            tracking_run = tracking.training(self.environment, resume_file=self.folder / "run", info=info, stage=STAGE)
            with interruption.deferred() as interrupted, tracking_run as tracked:
                parent = tracked.folder.name if tracked.folder else None
                runs = TrialRuns(self.search.settings.name, self.study.id, parent, self.environment)
                try:
                    self.run_trials(runs, tracked, interrupted)
                except Interrupted:
                    print("search: stopping the trials: the same command resumes them", flush=True)
                    raise
                finally:
                    for child in self.children.values():
                        child.terminate()
                    for child in self.children.values():
                        child.wait()
                    if interrupted.number is None:  # else the processes that send, or `sync`, deliver the rest
                        mirror.wait(self.environment)
                best = self.conclude(runs, tracked)
            self.study.conclude(best)
            runs.deliver([self.trial(each.number) for each in self.study.trials])
        self.tidy()

    def skip(self, number: int) -> None:
        """Mark the unfinished trial `number` as failed. Raises Refusal if there is no unfinished trial with this number."""
        if number not in self.study.running:
            left = ", ".join(map(str, self.study.running)) or "none"
            raise Refusal(f"--skip: {number} is not the number of an unfinished trial: the unfinished trials are {left}")
        self.finish(self.trial(number), "FAIL", step=0, reason="skipped")

    def print_begin(self, num_begun: int) -> None:
        settings, num_left = self.search.settings, len(self.study.running)
        purpose = f"that differ in {' and '.join(self.search.repeated)}" if self.search.repeated else f"for the best {self.metric}"
        resumed = f"; {num_begun - num_left} are finished, {num_left} will be resumed" if num_begun else ""
        print(f"search {settings.name}: {counted(self.num_trials, 'trial')} {purpose}, {settings.processes} at a time{resumed}", flush=True)
        threads = self.environment.threads or usable_cpus()
        if devices(self.environment, settings.processes)[0] is None and settings.processes * threads > max(usable_cpus(), threads):
            shared = f"{counted(settings.processes, 'trial')} with {counted(threads, 'thread')} each share {usable_cpus()} CPUs"
            print(f"note: {shared}: set PIPELINE_THREADS=1, also for the `dvc repro` afterwards, because it changes bits", flush=True)

    def run_trials(self, runs: TrialRuns, tracked: Run, interrupted: Interruption) -> None:
        """Begin trials, and run them until none is left. Trials that a killed search left come first."""
        self.tidy()
        left, free = self.study.running, devices(self.environment, self.search.settings.processes)
        running = dict[int, tuple[Iterator[None], str | None]]()
        while left or running or len(self.study.trials) < self.num_trials:
            interrupted.pause()
            while free and (left or len(self.study.trials) < self.num_trials):
                number, device = left.pop(0) if left else self.study.begin(), free.pop(0)
                running[number] = self.run_trial(self.trial(number), device, runs), device
            for number, (trial, device) in list(running.items()):
                if next(trial, True):
                    del running[number]
                    self.children.pop(number, None)
                    free.append(device)
                    self.report(number, tracked)
            if running:
                time.sleep(POLL_S)

    def run_trial(self, trial: TrialFolder, device: str | None, runs: TrialRuns) -> Iterator[None]:
        """Run the stages of a trial that have not ended yet, and record its outcome in the study. Yield while the process of a stage runs.

        A decision to prune the trial depends only on its validations, and not on the time at which this process reads them. A trial that
        has made its last step is not pruned. Raises Refusal if the data, the lock file or the code has changed since the search began, or if
        the process of a stage ended for another reason than the parameters of the trial.
        """
        number, seen, params = trial.number, list[int](), self.study.params(trial.number)
        try:
            text = self.search.text_of(params)
        except Refusal as refused:  # each value is valid by itself
            self.finish(trial, "FAIL", step=0, reason=refused.on_one_line)
            return
        trial.write(text, runs.journals)
        last_step = self.num_steps(Document.of(text, trial.paths.params).data)
        is_pruned = self.should_prune(trial, last_step, seen)
        while trial.left and not is_pruned:
            self.refuse_changes(trial)
            stage = trial.left[0]
            child = self.children[number] = start(trial, device, runs.tags(number, params))
            has_ended = False
            while not has_ended:
                has_ended = child.poll() is not None  # before the journal is read to its end
                runs.mirror(trial)
                if not is_pruned and self.should_prune(trial, last_step, seen):
                    is_pruned = True
                    child.terminate()
                if not has_ended:
                    yield
            if trial.left[:1] == [stage] and not is_pruned:
                self.finish(trial, "FAIL", step=seen[-1] if seen else 0, reason=str(self.failure(trial, child.returncode)))
                return
        if is_pruned:
            runs.amend(trial, {PRUNED_TAG: "true"}, "KILLED", description=f"pruned after validation {len(seen)}, step {seen[-1]}")
            self.finish(trial, "PRUNED", step=seen[-1])
            return
        metrics, step = trial.exported()
        if self.metric in metrics:
            more = {"scores": trial.scores()} if self.search.repeated else {}
            self.finish(trial, "COMPLETE", metrics[self.metric], step=step, **more)
        else:
            self.finish(trial, "FAIL", step=step, reason=f"the validation after step {step} does not determine {self.metric}")

    def should_prune(self, trial: TrialFolder, last_step: int, seen: list[int]) -> bool:
        """Report the new validations of a trial to the study, one by one, until it asks to prune the trial. `seen` are the steps so far."""
        for step, value in trial.reports(self.metric)[len(seen) :]:
            seen.append(step)
            if self.study.report(trial.number, len(seen), value) and step < last_step:
                return True
        return False

    def refuse_changes(self, trial: TrialFolder) -> None:
        """Raise Refusal if the data, the lock file or the code has changed since the search began: they may be edited while it runs."""
        self.study.refuse_changed(self.identity())
        if trial.left[0] != PREPARE and PREPARE in self.stages:
            prepared, own = (sizes_and_test(each) for each in (self.record, read_record(trial.paths.prepared)))
            if own != prepared:
                raise Refusal(f"{Paths().prepared}: source.root has changed since it was made: undo the change, or run `dvc repro prepare`")

    def finish(self, trial: TrialFolder, state: State, value: float | None = None, **attributes: Any) -> None:
        """Record the outcome of a trial in the study."""
        journal = trial.journal
        self.study.finish(trial.number, state, value, run=journal.name if journal else "", **attributes)

    def failure(self, trial: TrialFolder, exit_code: int) -> Problem:
        """Return what the parameters of a trial caused. Raises Refusal if its process ended for another reason, or if each trial would end so.

        This is so if no trial has begun its training, and the search varies no parameter in the section of the key.
        """
        problem, searched = trial.problem, {key.partition(".")[0] for key in self.search.space if key not in REPEATING}
        begun = any(study.run_of(each) for each in self.study.trials) or any(self.trial(number).journal for number in self.study.running)
        if problem and problem.location and (begun or problem.location[0] in searched):
            return problem
        raise Refusal(
            f"trial {trial.number} ended with exit code {exit_code}{f' ({problem})' if problem else ''}: {trial.folder / 'log.txt'} has its "
            "output: remove the cause, and repeat the command: it resumes this trial. "
            f"If it cannot end, repeat the command with --skip {trial.number}"
        )

    def report(self, number: int, tracked: Run) -> None:
        """Print the outcome of a trial, add it to the parent run, and remove files that are no longer needed."""
        trials, best, name = self.study.trials, self.study.best(), self.metric.rpartition("/")[2]
        trial, num_finished = trials[number], sum(each.state.is_finished() for each in trials)
        step, reason = (trial.user_attrs.get(key, "") for key in ("step", "reason"))
        value = "" if trial.value is None else f" {self.metric} {rounded(trial.value)} at step {step}"
        best_so_far = f"; best {rounded(best.value)} by trial {best.number}" if best and best.value is not None else ""
        print(
            f"search: trial {number} {OUTCOMES[trial.state.name]}:{value}{reason and f' {reason}'}; {study.described(trial.params)} "
            f"({num_finished} of {self.num_trials}{best_so_far})",
            flush=True,
        )
        found = trial.value if trial.state.name == "COMPLETE" and not self.search.repeated else None
        values = {f"search/{name}": found, f"search/best_{name}": best.value if best else None}
        if known := {key: each for key, each in values.items() if each is not None}:
            tracked.metrics(num_finished, known)
        self.tidy()

    def conclude(self, runs: TrialRuns, tracked: Run) -> int | None:
        """Add the table to the parent run, and the model of the best trial to its run. Return the number of this trial, or None.

        If all trials repeat one training, the parent run has the mean of each metric, under the name of the metric, and its deviation.
        """
        trials, earlier, best = self.study.ranked(), self.study.concluded.get("best"), self.study.best()
        if best and best.value is not None:
            if best.number != earlier:
                if earlier is not None:  # it was the best before the search was continued: its run keeps the model
                    runs.amend(self.trial(earlier), {BEST_TAG: "false"}, "FINISHED")
                marked = self.trial(best.number)
                runs.amend(marked, {BEST_TAG: "true"}, "FINISHED", model=marked.paths.model)
            of = f"{counted(len(trials), 'trial')}: trial {best.number}, {study.described(best.params)}"
            tracked.describe(f"best {self.metric} {rounded(best.value)} of {of}")
        if self.search.repeated and len(found := self.repetitions()) == 1 and (spreads := found[0].spreads):
            for name, each in spreads.items():
                tracked.metrics(len(trials), {name: each.mean, f"{name}_deviation": each.deviation})
            names = [name for name in (self.metric.replace(VALID, TEST), self.metric) if name in spreads]
            shown = ", ".join(f"{name} {' ± '.join(map(rounded, spreads[name][:2]))}" for name in names)
            tracked.describe(f"{shown}: mean ± deviation of {counted(found[0].num_trainings, 'training')}; {subject(self.params.data)}")
        tracked.text(TABLE, study.as_csv(trials, self.metric, self.search))
        tracked.artifact(self.search.document.path)
        tracked.text(self.params.path.name, self.search.params)  # the file may have been edited since
        return best.number if best else None

    def repetitions(self) -> list[Repetition]:
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
    """Print the table and the best trial, and write the table as CSV. Return 0 if a trial is complete, else 1.

    With `apply`, write the parameters of the best trial to params.yaml. Raises Refusal then if no trial is complete, or if the file has been
    edited while the search ran.
    """
    trials, search, target = runner.study.ranked(), runner.search, runner.params.path
    study.print_table(trials, runner.metric, search)
    files.write_text(runner.folder / TABLE, study.as_csv(trials, runner.metric, search))
    best = runner.study.best()
    if search.repeated:
        for repetition in runner.repetitions():
            study.print_spreads(repetition, search.repeated)
        return 0 if any(trial.state.name == "COMPLETE" for trial in trials) else 1
    if best:
        print(f"best: trial {best.number}, {study.described(best.params)}; model: {runner.trial(best.number).paths.model}")
    if not apply:
        if best:
            print(f"`python -m pipeline search {file} --apply` writes its parameters to {target}; `dvc repro` then trains it again")
        return 0 if best else 1
    if not best:
        raise Refusal("no trial is complete, so no parameters can be applied: see above why the trials failed, or add trials by --trials")
    with checkout_lock.alone(Path()):
        if target.read_text(encoding="utf-8") != search.params:
            raise Refusal(f"{target}: has been edited while the search ran, and is left as it is: repeat the command with --apply")
        files.write_text(target, search.text_of(best.params))
    print(f"{target} now has the parameters of trial {best.number}; `git diff {target}` shows them")
    return 0
