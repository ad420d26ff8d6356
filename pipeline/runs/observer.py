"""Watches a stage: records its run in a journal, and prints the progress of a training on the terminal."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pipeline.core.environment import Environment, Paths
from pipeline.core.observer import Observer
from pipeline.inference.model_file import Manifest
from pipeline.runs import run as tracking
from pipeline.runs import run_description
from pipeline.runs.terminal import described_size, training_lines
from pipeline.train.training import Training


class StageObserver(Observer):
    """Observes one stage. `document` is the content of `params.yaml`, as written there."""

    def __init__(self, document: Mapping[str, Any], paths: Paths, environment: Environment) -> None:
        self.document, self.paths, self.environment = document, paths, environment
        self.run_context, self.lines_context = ExitStack(), ExitStack()

    def training_begins(self, training: Training, inputs: Mapping[str, Any]) -> None:
        self.training, self.reported = training, (time.perf_counter(), training.state.step)
        graphs = {"requested": training.machine.graphs, "obstacle": training.why_eager}
        more = {"inputs": inputs, "data": str(training.train_split), "cuda_graphs": graphs}
        self.info = run_description.of_training(self.document, self.paths, self.environment, more, direction=training.plan.direction)
        print(f"train: {described_size(training)}", flush=True)
        resume_file = self.paths.run or training.saver.checkpoints.folder / "run"
        self.run = self.run_context.enter_context(tracking.training(self.environment, resume_file=resume_file, info=self.info))
        for row in training.progress.rows:  # those that a training of another length has reported; a run leaves out what it has
            self.run.metrics(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
        settings, num_samples = training.params.train, len(training.prepared.train)
        group = training.group
        lines = training_lines(settings, num_samples, training.machine.device, is_first=group.writes, num_processes=group.size)
        self.lines = self.lines_context.enter_context(lines)

    def step_ends(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step and print its progress. The rate and the memory differ each time, so only tracking gets them."""
        if metrics:
            now_s, (start_s, start_step) = time.perf_counter(), self.reported
            rate = {"train/samples_per_second": (step - start_step) * self.training.params.train.batch_size / (now_s - start_s)}
            self.run.metrics(step, {**metrics, **rate, **self.training.machine.memory()})
            self.reported = time.perf_counter(), step
        self.lines.report(step, metrics)

    def validation_continues(self) -> None:
        self.lines.validating()

    def steps_end(self) -> None:
        self.lines_context.close()

    def results_are_written(self) -> None:
        run_description.add_training(self.run, self.paths, self.info)

    def training_ends(self, error: BaseException | None) -> None:
        """End the run, which may wait for MLflow. Its status is FINISHED, KILLED after an interruption, or FAILED after another exception."""
        self.lines_context.close()
        self.run_context.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def evaluation_ends(self, manifest: Manifest, scores: Mapping[str, Any]) -> None:
        run_description.record_evaluation(self.document, self.paths, self.environment, manifest=manifest, scores=scores)
