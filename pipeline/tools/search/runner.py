"""Runs the trials of a search: begins them, reads their validations, prunes them, and continues a search that was killed."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.core import files, interruption
from pipeline.core.environment import Environment, Paths
from pipeline.core.interruption import Interrupted, Interruption
from pipeline.core.limits import usable_cpus
from pipeline.core.prepared import PreparedRecord, read_record
from pipeline.core.raw_dataset import TEST, VALID
from pipeline.core.refusal import Refusal, counted
from pipeline.core.yaml_document import Document
from pipeline.inference.digits import rounded
from pipeline.runs import run as tracking
from pipeline.runs.mlflow import mirror_process
from pipeline.runs.run import Run
from pipeline.runs.run_description import subject
from pipeline.tools.search import study
from pipeline.tools.search.settings import Search, identity_of
from pipeline.tools.search.spread import REPEATING
from pipeline.tools.search.study import FILE, Repetition, Study
from pipeline.tools.search.tracked import STAGE, TrialRuns, of_search
from pipeline.tools.search.trial import EVALUATE, PREPARE, TRAIN, Child, TrialFolder, devices
from pipeline.train.params import LoopSettings

POLL_S = 0.1
TABLE = "trials.csv"
CONCLUDED = "concluded.json"
"""The file with the count of trials when the search was last concluded, and the number of the best trial, whose run is marked as the best."""


class SearchRunner:
    """A search that runs in this process. The process holds the lock of the search."""

    def __init__(
        self,
        search: Search,
        params: Document,
        record: PreparedRecord,
        folder: Path,
        environment: Environment,
        num_trials: int,
        keep_models: bool,
    ) -> None:
        self.search, self.params, self.record, self.folder, self.environment = search, params, record, folder, environment
        self.num_trials, self.keep_models = min(num_trials, len(search.grid) or num_trials), keep_models or bool(search.repeated)
        prepares = any(key.startswith("source.") for key in search.space)
        self.stages = [*([PREPARE] if prepares else []), TRAIN, *([EVALUATE] if search.repeated else [])]
        self.children: dict[int, Child] = {}
        from pipeline.inference.measuring import directions  # late: metrics import torch

        metrics = {**record.spec.targets.metrics, **directions(params.data["train"]["metrics"])}
        self.metric, self.direction = search.target(metrics, params.data["train"]["metric"])
        self.devices = devices(environment, search.settings.processes)
        num_validations = -(-self.num_steps(params.data) // int(params.data["train"]["validate_every_steps"]))
        self.study = Study(folder / FILE, search, self.direction, identity=self.identity(), num_validations=num_validations)

    def identity(self) -> dict[str, Any]:
        return identity_of(self.search, self.params, Paths(), metric=self.metric, direction=self.direction)

    def num_steps(self, document: Mapping[str, Any]) -> int:
        return LoopSettings.model_validate_json(files.canonical(document["train"])).num_steps(self.record.splits[TRAIN].samples)

    def trial(self, number: int) -> TrialFolder:
        return TrialFolder(self.folder / f"trials/{number:04}", self.study.id, self.stages)

    @property
    def is_done(self) -> bool:
        num_trials = len(self.study.trials)
        return not self.study.running and num_trials >= self.num_trials and self.concluded().get("trials") == num_trials

    def concluded(self) -> dict[str, int | None]:
        path = self.folder / CONCLUDED
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}

    def run(self) -> None:
        """Run all trials that are left."""
        if not self.is_done:
            self.print_begin()
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
                    self.stop_all()
                    if interrupted.number is None:  # else the processes that send, or `sync`, deliver the rest
                        mirror_process.wait_for_all(self.environment)
                best = self.conclude(runs, tracked)
            files.write_json(self.folder / CONCLUDED, {"trials": len(self.study.trials), "best": best})
            runs.deliver([self.trial(each.number) for each in self.study.trials])
        self.tidy()

    def skip(self, number: int) -> None:
        """Mark the unfinished trial `number` as failed. Raises Refusal if there is no unfinished trial with this number."""
        if number not in self.study.running:
            left = ", ".join(map(str, self.study.running)) or "none"
            raise Refusal(f"--skip: {number} is not the number of an unfinished trial: the unfinished trials are {left}")
        self.finish(number, self.trial(number), "FAIL", step=0, reason="skipped")

    def print_begin(self) -> None:
        settings, begun = self.search.settings, len(self.study.trials)
        purpose = f"that differ in {' and '.join(self.search.repeated)}" if self.search.repeated else f"for the best {self.metric}"
        print(
            f"search {settings.name}: {counted(self.num_trials, 'trial')} {purpose}, {settings.processes} at a time"
            + (f"; {begun - len(self.study.running)} are finished, {len(self.study.running)} will be resumed" if begun else ""),
            flush=True,
        )
        threads = self.environment.threads or usable_cpus()
        if self.devices == [None] and settings.processes * threads > max(usable_cpus(), threads):
            print(
                f"note: {counted(settings.processes, 'trial')} with {counted(threads, 'thread')} each share {usable_cpus()} CPUs: "
                "set PIPELINE_THREADS=1, also for the `dvc repro` afterwards, because the number of threads changes bits",
                flush=True,
            )

    def run_trials(self, runs: TrialRuns, tracked: Run, interrupted: Interruption) -> None:
        """Begin trials, and run them until none is left. Trials that a killed search left come first."""
        self.tidy()
        left, running = self.study.running, dict[int, Iterator[str]]()
        while left or running or len(self.study.trials) < self.num_trials:
            interrupted.pause()
            while len(running) < self.search.settings.processes and (left or len(self.study.trials) < self.num_trials):
                number = left.pop(0) if left else self.study.begin()
                running[number] = self.run_trial(number, runs)
            for number, trial in list(running.items()):
                if next(trial, None) is None:
                    del running[number]
                    self.children.pop(number, None)
                    self.report(number, tracked)
            if running:
                time.sleep(POLL_S)

    def run_trial(self, number: int, runs: TrialRuns) -> Iterator[str]:
        """Run the stages of a trial that have not ended yet, and record its outcome in the study. Yield the stage while its process runs.

        A decision to prune the trial depends only on its validations, and not on the time at which this process reads them. A trial that
        has made its last step is not pruned. Raises Refusal if the data, the lock file or the code has changed since the search began, or if
        the process of a stage ended for another reason than the parameters of the trial.
        """
        trial, seen = self.trial(number), list[int]()
        try:
            text = self.search.text_of(self.study.params(number))
        except Refusal as refused:  # each value is valid by itself
            self.finish(number, trial, "FAIL", step=0, reason=refused.on_one_line)
            return
        trial.write(text, runs.journals)
        last_step = self.num_steps(Document.of(text, trial.paths.params).data)
        is_pruned = self.should_prune(number, trial, last_step, seen)
        while trial.left and not is_pruned:
            stage, child = trial.left[0], self.child(number, trial, runs)
            has_ended = False
            while not has_ended:
                has_ended = child.exit_code is not None  # before the journal is read to its end
                runs.mirror(trial)
                if not is_pruned and self.should_prune(number, trial, last_step, seen):
                    is_pruned = True
                    child.stop()
                if not has_ended:
                    yield stage
            if trial.left[:1] == [stage] and not is_pruned:
                self.finish_failed(number, trial, child, step=seen[-1] if seen else 0)
                return
        if is_pruned:
            runs.mark_pruned(trial, len(seen), seen[-1])
            self.finish(number, trial, "PRUNED", step=seen[-1])
        else:
            self.finish_complete(number, trial)

    def should_prune(self, number: int, trial: TrialFolder, last_step: int, seen: list[int]) -> bool:
        """Report the new validations of a trial to the study, one by one, until it asks to prune the trial. `seen` are the steps so far."""
        for step, value in trial.reports(self.metric)[len(seen) :]:
            seen.append(step)
            if self.study.report(number, len(seen), value) and step < last_step:
                return True
        return False

    def child(self, number: int, trial: TrialFolder, runs: TrialRuns) -> Child:
        """Start the next stage of a trial. Raises Refusal if the data, the lock file or the code has changed since the search began."""
        self.study.refuse_changed(self.identity())  # they may have been changed while the search runs
        if trial.left[0] != PREPARE and PREPARE in self.stages:
            prepared, own = (sizes_and_test(each) for each in (self.record, read_record(trial.paths.prepared)))
            if own != prepared:
                raise Refusal(f"{Paths().prepared}: source.root has changed since it was made: undo the change, or run `dvc repro prepare`")
        self.children.pop(number, None)
        slot = min(set(range(len(self.children) + 1)) - {each.slot for each in self.children.values()})
        device, tags = self.devices[slot % len(self.devices)], runs.tags(number, self.study.params(number))
        self.children[number] = Child(trial, slot, device, tags)
        return self.children[number]

    def finish(self, number: int, trial: TrialFolder, state: str, value: float | None = None, **attributes: Any) -> None:
        """Record the outcome of a trial in the study. `state` is the name of one of Optuna's."""
        from optuna.trial import TrialState

        journal = trial.journal
        self.study.finish(number, TrialState[state], value, run=journal.name if journal else "", **attributes)

    def finish_complete(self, number: int, trial: TrialFolder) -> None:
        """Record a trial whose stages have all ended. It failed if its metric is undetermined."""
        metrics, step = trial.exported()
        value = metrics.get(self.metric)
        if value is None:
            reason = f"the validation after step {step} does not determine {self.metric}"
            self.finish(number, trial, "FAIL", step=step, reason=reason)
        else:
            more = {"scores": trial.scores()} if self.search.repeated else {}
            self.finish(number, trial, "COMPLETE", value, step=step, **more)

    def finish_failed(self, number: int, trial: TrialFolder, child: Child, *, step: int) -> None:
        """Record a trial whose process ended because of its parameters. Raises Refusal if it ended for another reason."""
        reason = child.parameter_error
        if not reason or self.concerns_all(reason):
            raise Refusal(
                f"trial {number} ended with exit code {child.exit_code}{f' ({child.error})' if child.error else ''}: {child.log} has its "
                "output: remove the cause, and repeat the command: it resumes this trial. "
                f"If it cannot end, repeat the command with --skip {number}"
            )
        self.finish(number, trial, "FAIL", step=step, reason=reason)

    def concerns_all(self, error: str) -> bool:
        """Return True if every trial would fail with this error message, which begins with a key of params.yaml.

        This is so if no trial has begun its training, and the search varies no parameter in the section of the key.
        """
        begun = any(row.run for row in self.study.rows()) or any(child.trial.journal for child in self.children.values())
        section = re.split(r"[.:]", error)[0]
        return not begun and section not in {key.partition(".")[0] for key in self.search.space if key not in REPEATING}

    def report(self, number: int, tracked: Run) -> None:
        """Print the outcome of a trial, add it to the parent run, and remove files that are no longer needed."""
        rows = self.study.rows()
        row, best = next(row for row in rows if row.number == number), self.study.best()
        value = "" if row.value is None else f" {self.metric} {rounded(row.value)} at step {row.step}"
        finished = sum(row.outcome != study.RUNNING for row in rows)
        print(
            f"search: trial {number} {row.outcome}:{value}{row.reason and f' {row.reason}'}; {study.described(row.params)} "
            f"({finished} of {self.num_trials}{f'; best {rounded(best.value)} by trial {best.number}' if best and best.value is not None else ''})",
            flush=True,
        )
        name = self.metric.rpartition("/")[2]
        is_ranked = row.outcome == study.COMPLETE and not self.search.repeated  # else the last of them would stand beside the mean
        values = {f"search/{name}": row.value} if is_ranked and row.value is not None else {}
        if best and best.value is not None:
            values[f"search/best_{name}"] = best.value
        tracked.metrics(finished, values)
        self.tidy()

    def conclude(self, runs: TrialRuns, tracked: Run) -> int | None:
        """Add the table to the parent run, and the model of the best trial to its run. Return the number of this trial, or None.

        If all trials repeat one training, the parent run has the mean of each metric, under the name of the metric, and its deviation.
        """
        rows, marked, best = self.study.rows(), self.concluded().get("best"), self.study.best()
        if best and best.number != marked:
            runs.mark_best(self.trial(best.number), None if marked is None else self.trial(marked))
        if best and best.value is not None:
            of = f"{counted(len(rows), 'trial')}: trial {best.number}, {study.described(best.params)}"
            tracked.describe(f"best {self.metric} {rounded(best.value)} of {of}")
        if self.search.repeated and len(found := self.repetitions()) == 1 and (spreads := found[0].spreads()):
            for name, each in spreads.items():
                tracked.metrics(len(rows), {name: each.mean, f"{name}_deviation": each.deviation})
            test = self.metric.replace(VALID, TEST)
            shown = ", ".join(f"{name} {spreads[name]}" for name in (test, self.metric) if name in spreads)
            tracked.describe(f"{shown}: mean ± deviation of {counted(len(found[0].scores), 'training')}; {subject(self.params.data)}")
        tracked.text(TABLE, study.as_csv(rows, self.metric, list(self.search.space)))
        tracked.artifact(self.search.document.path)
        tracked.text(self.params.path.name, self.search.params)  # the file may have been edited since
        return best.number if best else None

    def repetitions(self) -> list[Repetition]:
        return study.repetitions(self.study.rows(), self.params.data["source"]["folds"])

    def stop_all(self) -> None:
        """Stop the trials that still train, and wait until they have saved a checkpoint."""
        for child in self.children.values():
            child.stop()
        for child in self.children.values():
            child.wait()

    def tidy(self) -> None:
        """Remove the checkpoints of all finished trials, and their models except that of the best trial."""
        best = self.study.best()
        for row in self.study.rows():
            if row.outcome != study.RUNNING:
                trial = self.trial(row.number)
                trial.remove_checkpoints()
                if not self.keep_models and not (best and best.number == row.number):
                    trial.paths.model.unlink(missing_ok=True)


def sizes_and_test(record: PreparedRecord) -> tuple[int, str]:
    """Return what all folds have in common: the number of samples, and the targets of the test split. Its inputs may have another tokenizer."""
    return sum(split.samples for split in record.splits.values()), record.splits[TEST].targets_digest
