"""Profiles some steps of a training, and says what limits the speed: waiting for data, launches of operations by the host, or computing.

The time of a step is measured without the profiler, which would make the step longer. Only the time in which the device computes, the heaviest
operations and the trace come from steps under PyTorch's profiler: on a GPU, the time of its kernels; on a CPU, a fraction of these steps.
"""

import gzip
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.core import files
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import counted
from pipeline.inference.machine import Machine
from pipeline.tools.profile.trial import WAITING, Trial, cpu_wait_s, note, stepping, steps_for, synchronize, time_block
from pipeline.train.engine.fit import Report
from pipeline.train.params import TrainParams

BLOCKS, WARMUP_STEPS, CALIBRATION_STEPS = 5, 10, 3
BUDGET_S = 3.0
"""Seconds that all steps without the profiler take together, unless `--steps` gives their number."""
TRACED_S, MOST_TRACED, MOST_OPERATIONS = 1.0, 10, 10
STEP = "step"
COMPILED = "## Call CompiledFxGraph"
"""The names of events that contain compiled kernels begin with this text. On a CPU, such kernels have no events of their own."""
ENGINE = ("autograd::", "torch::autograd::")
"""The names of events of the autograd engine begin with one of these texts. Such an event may contain Python code, for example hooks."""
VERDICTS = {
    "waiting for data": "make samples smaller, augment them less, use more threads, or free memory, so that the train split is held on the device",
    "launches": "the device waits for Python: try `train.compile`, larger micro-batches or batches, or fewer reports; the trace shows which code it is",
    "computing": "as it should: `python -m pipeline profile --speedup` measures what would help here; else use a faster device or a smaller model",
}
"""The parts of a step, each with the remedy for the case that it is the largest."""


class Timed(NamedTuple):
    """Mean times of a step in seconds: the whole step, its wait for data, and the time in which the main thread was ready, but other threads or
    processes used the CPUs.
    """

    step_s: float
    data_s: float
    cpu_wait_s: float = 0.0


class Traced(NamedTuple):
    """Holds the seconds of a step under the profiler: those in which the device computes, those in which a GPU receives data from the host, and
    those of the whole step without its wait for data.
    """

    computing_s: float
    copying_s: float
    stepping_s: float


@dataclass(frozen=True)
class Profile:
    """The profile of a training of steps with `samples` samples, of which `steps` were timed. `shares` divides a step by the keys of VERDICTS.

    `operations` is the table of PyTorch's profiler with the operations that take the most time, all profiled steps together.
    """

    title: str
    samples: int
    steps: int
    timed: Timed
    shares: Mapping[str, float]
    operations: str

    def lines(self) -> Iterator[str]:
        """Yield the lines that the user sees."""
        step_s, largest = self.timed.step_s, max(self.shares, key=self.shares.__getitem__)
        yield f"{self.title}: {1000 * step_s:.2f} ms a step, {self.samples / step_s:,.0f} samples a second"
        yield f"({counted(self.steps, 'step')} after warm-up, without the profiler; times are those of the median of {BLOCKS} blocks)\n"
        for name, value in self.shares.items():
            yield f"  {name:22} {value:6.1%} {1000 * value * step_s:8.2f} ms"
        yield f"\nMost of the time goes into {largest} ({self.shares[largest]:.0%}): {VERDICTS[largest]}."
        if warning := note(self.timed.cpu_wait_s / step_s):
            yield warning
        yield f"\n{self.operations}"


def profile_training(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None, trace: Path | None = None) -> Profile:
    """Profile a training. `steps` is the number of steps without the profiler; None for as many as take BUDGET_S seconds.

    Write the trace of the profiled steps, which Chrome and Perfetto read, to `trace`, compressed if its name ends in `.gz`.
    """
    trial, device, settings = Trial.of(params, prepared, machine), machine.device, params.train
    on_gpu = device.type == "cuda"
    with stepping(trial) as reports:
        block(trial, reports, WARMUP_STEPS)
        step_s = block(trial, reports, CALIBRATION_STEPS).step_s
        each = -(-steps // BLOCKS) if steps else steps_for(BUDGET_S / BLOCKS, step_s, least=2)
        timed = sorted(block(trial, reports, each) for _ in range(BLOCKS))[BLOCKS // 2]
        traced, profiler = trace_steps(trial, reports, steps_for(TRACED_S, step_s, least=2, most=MOST_TRACED))
    if trace:
        write_trace(profiler, trace)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    parts = f" in micro-batches of {settings.micro_batch_size}" if settings.micro_batch_size < settings.batch_size else ""
    return Profile(
        title=f"{trial.title}, {counted(settings.batch_size, 'sample')}{parts}",
        samples=settings.batch_size,
        steps=BLOCKS * each,
        timed=timed,
        shares=shares(timed, traced, on_gpu=on_gpu),
        operations=profiler.key_averages().table(sort_by=by, row_limit=MOST_OPERATIONS, max_name_column_width=40).rstrip(),
    )


def block(trial: Trial, reports: Iterator[Report], steps: int) -> Timed:
    """Make `steps` steps, and return their mean times. The host waits for the device only before the first and after the last of them."""
    start_s, start_wait_s = trial.clock.elapsed_s, cpu_wait_s()
    step_s = time_block(partial(next, reports), steps, partial(synchronize, trial.machine.device))
    return Timed(step_s, (trial.clock.elapsed_s - start_s) / steps, (cpu_wait_s() - start_wait_s) / steps)


def shares(timed: Timed, traced: Traced, *, on_gpu: bool) -> dict[str, float]:
    """Divide the time of a step by the keys of VERDICTS; the sum is 1.

    A GPU that does not compute waits for data while it receives some and as long as the host does, and for launches in the remaining time. On a CPU, computing takes the
    same fraction of the step outside of the wait for data as it took under the profiler.
    """
    if on_gpu:
        computing_s = min(traced.computing_s, timed.step_s)
        data_s = min(timed.data_s + traced.copying_s, timed.step_s - computing_s)
    else:
        data_s = min(timed.data_s, timed.step_s)
        computing_s = (timed.step_s - data_s) * (min(1.0, traced.computing_s / traced.stepping_s) if traced.stepping_s else 0.0)
    parts = (data_s, timed.step_s - data_s - computing_s, computing_s)
    return {name: part / timed.step_s for name, part in zip(VERDICTS, parts, strict=True)}


def trace_steps(trial: Trial, reports: Iterator[Report], steps: int) -> tuple[Traced, profile]:
    """Make `steps` steps under the profiler. Return what a step does, and the profiler."""
    device = trial.machine.device
    on_gpu = device.type == "cuda"
    trial.clock.marks = True
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        start_s, start_data_s = time.perf_counter(), trial.clock.elapsed_s
        for _ in range(steps):
            with record_function(STEP):
                next(reports)
        synchronize(device)
        stepping_s = time.perf_counter() - start_s - (trial.clock.elapsed_s - start_data_s)
    trial.clock.marks = False
    computing_s, copying_s = occupancy(profiler.events() or (), on_gpu=on_gpu)
    return Traced(computing_s / steps, copying_s / steps, stepping_s / steps), profiler


def occupancy(events: Iterable[Any], *, on_gpu: bool) -> tuple[float, float]:
    """Return the seconds in which the device computes, and in which a GPU receives data from the host, given the events of PyTorch's profiler.

    On a CPU, these are operations of a step outside of its wait for data. Work that a GPU does at the same time is counted twice.
    """
    if on_gpu:
        work = [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]
        copies = [event for event in work if "HtoD" in event.name]
        copying_us, all_us = (sum(event.time_range.elapsed_us() for event in each) for each in (copies, work))
        return (all_us - copying_us) / 1e6, copying_us / 1e6
    return sum(event.self_cpu_time_total for event in events if is_operation(event.name) and is_in_step(event)) / 1e6, 0.0


def is_operation(name: str) -> bool:
    """Return True if an event with this name is an operation of PyTorch, such as `aten::mm`, and not Python code or the autograd engine."""
    return name.startswith(COMPILED) or ("::" in name and not name.startswith(ENGINE))


def is_in_step(event: Any) -> bool:
    """Return True if the event happens in a step and outside of its wait for data."""
    while event and event.name not in (STEP, WAITING):
        event = event.cpu_parent
    return bool(event) and event.name == STEP


def write_trace(profiler: profile, path: Path) -> None:
    """Write the trace to `path`, without the name of the machine, which is private: users share traces."""
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        whole = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(whole))
        document = json.loads(whole.read_text(encoding="utf-8", errors="replace"))
    document.pop("host_name", None)
    content = json.dumps(document).encode()
    with files.replacing(path) as draft:
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
