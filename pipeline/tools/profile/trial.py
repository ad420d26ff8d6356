"""Runs the steps of a training for measurements, without validations, checkpoints and files, and measures their time.

Several trainings are timed in one process, in blocks of steps that alternate, so that a drift of the machine's speed affects all alike.
"""

import io
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast

import torch
from torch.profiler import record_function

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.inference import torch_errors
from pipeline.inference.batch import Batch
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.inference.machine import Machine
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.fit import Report
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
WARMUP_STEPS, CALIBRATION_STEPS = 5, 3
Step = Callable[[], object]
Name = TypeVar("Name")


@dataclass(frozen=True)
class MarkedBatch:
    """A batch that marks in a trace how long its micro-batches take to make. All else is that of `batch`."""

    batch: BlockBatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def parts(self, max_size: int, lane: int = 0) -> Iterator[Batch]:
        parts = self.batch.parts(max_size, lane)
        for _ in range(self.num_parts(max_size)):
            with record_function(WAITING):
                part = next(parts)
            yield part


class Trial(Training):
    """A training for a measurement. A trace shows when its steps wait for data."""

    @classmethod
    def of(
        cls, params: TrainParams, prepared: Prepared, machine: Machine, *, changes: Mapping[str, Any] | None = None, group: Group = ALONE
    ) -> Self:
        """Begin a trial of `params`, with `changes` in the section `train`, such as `{"precision": "bf16"}`. It never ends and never validates.

        The weights in `model.weights` are not loaded, because they do not affect the speed. Raises Refusal if the settings do not fit each
        other, the data, the model or the machine.
        """
        data = params.model_dump(mode="json")
        loop = data["train"] | dict(changes or {})
        steps = MANY_REPORTS * loop["report_every_steps"]
        length = {"epochs": None, "steps": steps, "validate_every_steps": steps, "patience": None, "export_weights": "last"}
        length["on_nonfinite"] = "skip" if loop["on_nonfinite"] == "skip" else "stop"
        data |= {"model": {**data["model"], "weights": None}, "train": {**loop, **length}}
        with redirect_stdout(io.StringIO()), torch_errors.with_remedies(size="model"):
            endless = from_data(data, TrainParams, "params.yaml")
            return cast("Self", cls.begin(endless, prepared, machine, Checkpoints(NO_CHECKPOINTS, 1), group=group))

    @property
    def title(self) -> str:
        captured = "" if self.why_eager else ", in captured steps"
        return f"{self.params.model.title} on {self.machine.device} ({self.machine.name}) in {self.state.precision}{captured}"

    def batches(self, start: int) -> Generator[BlockBatch]:
        """Yield the batches of the training, and mark in a trace how long each takes to make.

        On a GPU, kernels gather the inputs of micro-batches, which counts as computing. On a CPU, the step waits for these inputs.
        """
        on_cpu = self.machine.device.type == "cpu"
        with closing(super().batches(start)) as batches:
            while True:
                with record_function(WAITING):
                    batch = next(batches)
                yield cast("BlockBatch", MarkedBatch(batch)) if on_cpu else batch


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


def time_block(step: Step, count: int, device: torch.device) -> float:
    """Call `step()` `count` times, and return the seconds per call.

    The host waits for the device only at the beginning and the end, so that it may run ahead in between, as in a training.
    """
    synchronize(device)
    start_s = time.perf_counter()
    for _ in range(count):
        step()
    synchronize(device)
    return (time.perf_counter() - start_s) / count


def begin_block(step: Step, device: torch.device, block_s: float) -> int:
    """Make the first steps, in which kernels are chosen or compiled. Return the number of steps that then take about `block_s` seconds."""
    time_block(step, WARMUP_STEPS, device)
    return max(1, round(block_s / time_block(step, CALIBRATION_STEPS, device)))


def interleaved(blocks: Mapping[Name, Callable[[], float]], rounds: int) -> dict[Name, list[float]]:
    """Call each of `blocks` once in every round, and reverse their order in every second round. Return what each returned, by name."""
    found: dict[Name, list[float]] = {name: [] for name in blocks}
    for number in range(rounds):
        for name in list(blocks)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(blocks[name]())
    return found


class Ratio(NamedTuple):
    """The median, minimum and maximum of a ratio of values that were measured in several rounds."""

    median: float
    least: float
    most: float


def ratios(numerators: list[float], denominators: list[float]) -> Ratio:
    """Return the ratio of values that were measured in the same rounds."""
    found = [one / other for one, other in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))
