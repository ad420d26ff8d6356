"""Runs the steps of a training for measurements, without validations, checkpoints and files, and measures their time.

Several trainings are timed in one process, in blocks of steps that alternate, so that a drift of the machine's speed affects all alike.
"""

import io
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast

import torch
from torch.profiler import record_function

from pipeline.core.environment import Environment, Paths
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared
from pipeline.inference import torch_errors
from pipeline.inference.batch import Batch
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.inference.machine import Machine, set_determinism
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
SCHEDULER_STATISTICS = Path("/proc/self/schedstat")
"""The main thread's nanoseconds on a CPU, its nanoseconds of waiting for a CPU, and the number of its time slices (the kernel's
sched-stats.rst)."""
CROWDED = 0.1
"""If the main thread waits for a CPU for a larger share of the time, the measurement gets a warning."""
Step = Callable[[], object]
Name = TypeVar("Name")


def set_up(params: TrainParams, paths: Paths, environment: Environment) -> tuple[Prepared, Machine]:
    """Open the prepared data, and set up the machine for one process with the whole batch. Raises Refusal like the stage `train`."""
    machine = Machine.set_up(environment.model_copy(update={"local_world_size": 1}))
    set_determinism(params.train.deterministic, training=True)
    return Prepared.open(paths.prepared), machine


@dataclass
class DataClock:
    """Measures how long steps wait for the samples of their batches.

    `elapsed_s` is wall-clock time. If `marks` is True, the waits also appear in the trace of a profiler.
    """

    elapsed_s: float = 0.0
    marks: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        with record_function(WAITING) if self.marks else nullcontext():
            start_s = time.perf_counter()
            try:
                yield
            finally:
                self.elapsed_s += time.perf_counter() - start_s


@dataclass(frozen=True)
class TimedBatch:
    """A batch that measures how long its micro-batches take to make. All else is that of `batch`."""

    batch: BlockBatch
    clock: DataClock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

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
        cls, params: TrainParams, prepared: Prepared, machine: Machine, *, changes: Mapping[str, Any] | None = None, group: Group = ALONE
    ) -> Self:
        """Begin a trial of `params`, with `changes` in the section `train`, such as `{"precision": "bf16"}`. It never ends and never validates.

        The weights in `model.weights` are not loaded, because they do not affect the speed. Raises Refusal if the settings do not fit each
        other, the data, the model or the machine.
        """
        with redirect_stdout(io.StringIO()), torch_errors.with_remedies(size="model"):
            trial = cls.begin(endless(params, changes or {}), prepared, machine, Checkpoints(NO_CHECKPOINTS, 1), group=group)
        assert isinstance(trial, cls)
        return trial

    @property
    def title(self) -> str:
        captured = "" if self.why_eager else ", in captured steps"
        return f"{self.params.model.title} on {self.machine.device} ({self.machine.name}) in {self.state.precision}{captured}"

    def batches(self, start: int) -> Generator[BlockBatch]:
        """Yield the batches of the training, and measure how long each takes to make.

        On a GPU, kernels gather the inputs of micro-batches, which counts as computing. On a CPU, the step waits for these inputs.
        """
        on_cpu = self.machine.device.type == "cpu"
        with closing(super().batches(start)) as batches:
            while True:
                with self.clock.running():
                    batch = next(batches)
                yield cast("BlockBatch", TimedBatch(batch, self.clock)) if on_cpu else batch


def endless(params: TrainParams, changes: Mapping[str, Any]) -> TrainParams:
    """Return `params` with `changes` of the section `train`, for a training that never validates and never ends. Raises Refusal if they do not fit."""
    data = params.model_dump(mode="json")
    loop = data["train"] | changes
    steps = MANY_REPORTS * loop["report_every_steps"]
    length = {"epochs": None, "steps": steps, "validate_every_steps": steps, "patience": None, "export_weights": "last"}
    length["on_nonfinite"] = "skip" if loop["on_nonfinite"] == "skip" else "stop"
    return from_data({**data, "model": {**data["model"], "weights": None}, "train": {**loop, **length}}, TrainParams, "params.yaml")


@contextmanager
def stepping(trial: Training) -> Iterator[Iterator[Report]]:
    """Give an iterator within the block: each `next` makes one step of `trial`. At the end of the block, its reader thread is stopped.

    Raises Refusal with the parameter to change for errors of torch that the user can fix.
    """
    reports = trial.reports()
    with closing(reports) if isinstance(reports, Generator) else nullcontext(), torch_errors.with_remedies(size="train.micro_batch_size"):
        yield reports


def synchronize(*devices: torch.device) -> None:
    """Wait until the devices have run everything that was launched. On a CPU, there is nothing to wait for."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def steps_for(budget_s: float, step_s: float, *, least: int = 1, most: int = 2000) -> int:
    """Return the number of steps of `step_s` seconds that take about `budget_s` seconds, from `least` to `most`."""
    return max(least, min(most, round(budget_s / step_s)))


class Ratio(NamedTuple):
    """The median, minimum and maximum of a ratio of values that were measured in several rounds."""

    median: float
    least: float
    most: float


def time_block(step: Step, count: int, synchronize: Callable[[], object]) -> float:
    """Call `step()` `count` times, and return the seconds per call.

    `synchronize()` waits for the device; it is called only at the beginning and the end, so that the host may run ahead in between, as in a
    training.
    """
    synchronize()
    start_s = time.perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return (time.perf_counter() - start_s) / count


def interleaved(
    steps: Mapping[Name, tuple[Step, int]],
    *,
    rounds: int,
    synchronize: Callable[[], object],
    before: Callable[[Name], object] = lambda _: None,
) -> dict[Name, list[float]]:
    """Run one block of each of `steps` in every round, and reverse their order in every second round. Return seconds per step by name.

    `steps` maps a name to a pair: a function that makes one step, and the number of steps in its block. The result has a value for each
    block. `synchronize` is as for `time_block`. `before(name)` is called before each block and is not timed.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps)[:: 1 if number % 2 == 0 else -1]:
            before(name)
            seconds[name].append(time_block(*steps[name], synchronize))
    return seconds


def ratios(numerators: list[float], denominators: list[float]) -> Ratio:
    """Return the ratio of values that were measured in the same rounds."""
    found = [one / other for one, other in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))


def cpu_wait_s() -> float:
    """Return how long the main thread of this process has waited for a CPU since its start; 0 if the kernel does not report it."""
    try:
        return int(SCHEDULER_STATISTICS.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def note(share: float) -> str | None:
    """Return a warning if `share`, the share of the time in which the main thread waited for a CPU, exceeds CROWDED. Else return None."""
    if share <= CROWDED:
        return None
    return f"Other processes use the CPUs: for {share:.0%} of the time, this process had to wait for one. Measure again without them."


def watch() -> Callable[[], str | None]:
    """Return a function that returns a warning, as `note` does, for the time since this call of `watch`."""
    start_s, start_wait_s = time.perf_counter(), cpu_wait_s()
    return lambda: note((cpu_wait_s() - start_wait_s) / (time.perf_counter() - start_s))
