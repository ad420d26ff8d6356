"""Runs the steps of a training of this checkout for measurements, without validations, checkpoints and files."""

import io
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch.profiler import record_function

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.inference import torch_errors
from pipeline.inference.batch import Batch
from pipeline.inference.machine import Machine
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.fit import Report
from pipeline.train.engine.update import WholeBatch
from pipeline.train.group.processes import ALONE, Group
from pipeline.train.params import TrainParams
from pipeline.train.training import Training

WAITING = "waiting for data"
"""The name of the waits for data in a trace."""
NO_CHECKPOINTS = Path("/dev/null/no-checkpoints")
"""A folder that cannot exist: no checkpoint is found there, and none can be written."""
MANY_REPORTS = 100_000
NEVER = 1_000_000
"""A value of `train.report_every_steps` that no measurement reaches."""


@dataclass
class DataClock:
    """Measures how long steps wait for the samples of their batches.

    `elapsed_s` is wall-clock time, and `processor_s` the CPU time of all threads of this process meanwhile. If `marks` is True, the waits
    also appear in the trace of a profiler.
    """

    elapsed_s: float = 0.0
    processor_s: float = 0.0
    marks: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        with record_function(WAITING) if self.marks else nullcontext():
            elapsed_s, processor_s = time.perf_counter(), time.process_time()
            try:
                yield
            finally:
                self.elapsed_s += time.perf_counter() - elapsed_s
                self.processor_s += time.process_time() - processor_s


@dataclass(frozen=True)
class TimedBatch:
    """A batch that measures how long its micro-batches take to make."""

    batch: WholeBatch
    clock: DataClock

    @property
    def num_targets(self) -> int:
        return self.batch.num_targets

    @property
    def lane_size(self) -> int:
        return self.batch.lane_size

    def num_parts(self, max_size: int) -> int:
        return self.batch.num_parts(max_size)

    def parts(self, max_size: int, lane: int = 0) -> Iterator[Batch]:
        parts = self.batch.parts(max_size, lane)
        for _ in range(self.num_parts(max_size)):
            with self.clock.running():
                part = next(parts)
            yield part


@dataclass
class Trial(Training):
    """A training for a measurement. `clock` measures how long its steps wait for data."""

    clock: DataClock = field(default_factory=DataClock)

    @classmethod
    def of(
        cls,
        params: TrainParams,
        prepared: Prepared,
        machine: Machine,
        *,
        changes: Mapping[str, Any] | None = None,
        group: Group = ALONE,
    ) -> Self:
        """Begin a trial of `params`, with `changes` in the section `train`, such as `{"precision": "bf16"}`. It never ends and never validates.

        The weights in `model.weights` are not loaded, because they do not affect the speed. Raises Refusal if the settings do not fit each
        other, the data, the model or the machine.
        """
        with redirect_stdout(io.StringIO()), torch_errors.with_remedies(size="model"):
            trial = cls.begin(endless(params, changes or {}), prepared, machine, Checkpoints(NO_CHECKPOINTS, 1), group=group)
        assert isinstance(trial, cls)
        return trial

    def batches(self, start: int) -> Generator[WholeBatch]:
        """Yield the batches of the training, and measure how long each takes to make.

        On a GPU, kernels gather the inputs of micro-batches, which counts as computing. On a CPU, the step waits for these inputs.
        """
        on_cpu = self.machine.device.type == "cpu"
        with closing(super().batches(start)) as batches:
            while True:
                with self.clock.running():
                    batch = next(batches)
                yield TimedBatch(batch, self.clock) if on_cpu else batch


def endless(params: TrainParams, changes: Mapping[str, Any]) -> TrainParams:
    """Return `params` with `changes` of the section `train`, for a training that never validates and never ends. Raises Refusal if they do not fit."""
    data = params.model_dump(mode="json")
    loop = data["train"] | changes
    steps = MANY_REPORTS * loop["report_every_steps"]
    length = {"epochs": None, "steps": steps, "validate_every_steps": steps, "patience": None, "export_weights": "last"}
    return from_data({**data, "model": {**data["model"], "weights": None}, "train": {**loop, **length}}, TrainParams, "params.yaml")


@contextmanager
def stepping(trial: Training) -> Iterator[Iterator[Report]]:
    """Give an iterator within the block: each `next` makes one step of `trial`. At the end of the block, its reader thread is stopped.

    Raises Refusal with the parameter to change for errors of torch that the user can fix.
    """
    reports = trial.reports()
    with closing(reports) if isinstance(reports, Generator) else nullcontext(), torch_errors.with_remedies(size="train.micro_batch_size"):
        yield reports


def synchronize(device: torch.device) -> None:
    """Wait until the device has run everything that was launched. On a CPU, there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def steps_for(budget_s: float, step_s: float, *, least: int = 1, most: int = 2000) -> int:
    """Return the number of steps of `step_s` seconds that take about `budget_s` seconds, from `least` to `most`."""
    return max(least, min(most, round(budget_s / step_s)))
