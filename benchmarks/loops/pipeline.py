"""The pipeline's own loop of the train stage with all features: tracking to a store, checkpoints, metrics, and optionally determinism."""

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.block_timer import BlockTimer
from benchmarks.job import Job
from pipeline.core.environment import Environment
from pipeline.core.interruption import Interruption
from pipeline.core.observer import Observer
from pipeline.core.prepared import Prepared
from pipeline.inference.machine import Machine, set_determinism
from pipeline.runs import run as tracking
from pipeline.runs.events import DELIVERED
from pipeline.runs.journal import RunInfo
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.stage import loop
from pipeline.train.training import Training
from pipeline.train.work_folder import Work

MIRROR_LIMIT_S = 120.0


@dataclass
class Paced(Interruption):
    """Counts steps for the timer in `pause`, which the stage calls at least once after each step."""

    timer: BlockTimer | None = None
    training: Training | None = None
    journal: Path | None = None

    def pause(self) -> None:
        assert self.timer
        assert self.training
        if self.training.state.step > self.timer.count:
            if self.timer.count == self.timer.job.warmup_steps - 1 and self.journal:
                await_mirror(self.journal)
            self.timer.step()


def await_mirror(journal: Path) -> None:
    """Wait until the mirror process has imported MLflow and made its first delivery, so that blocks exclude its start.

    Return at once if MLflow is not installed: there is no mirror then.
    """
    if importlib.util.find_spec("mlflow") is None:
        return
    end_s = time.monotonic() + MIRROR_LIMIT_S
    while time.monotonic() < end_s and not ((journal / DELIVERED).exists() and (journal / DELIVERED).stat().st_size):
        time.sleep(0.1)


def train(job: Job, prepared: Prepared, machine: Machine, timer: BlockTimer, *, deterministic: bool = True, tracked: bool = True) -> None:
    set_determinism(deterministic, training=True)
    environment = Environment.read()
    environment = environment.model_copy(update={"tracking": tracked and environment.tracking})
    training = Training.begin(
        job.params(deterministic=deterministic), prepared, machine, Checkpoints(Path("work"), environment.checkpoints_kept)
    )
    with tracking.training(environment, resume_file=Path("work/run"), info=RunInfo()) as run:
        observer = Observer()
        observer.step_ends = run.metrics  # type: ignore[method-assign]
        loop(training, observer, environment, Paced(timer=timer, training=training, journal=run.folder), Work(Path("work")))
        rows = training.progress.rows
        steps = [row["step"] - before for row, before in zip(rows, [0, *(row["step"] for row in rows)], strict=False)]
        timer.finish(sum(row["train/objective"] * count for row, count in zip(rows, steps, strict=True)) / sum(steps))
