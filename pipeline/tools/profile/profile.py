"""Profiles some steps of a training, and says what limits the speed: waiting for data, launches of operations by the host, or computing.

The time of a step is measured without the profiler, which would make the step longer. Only the time in which the device computes, the heaviest
operations and the trace come from steps under PyTorch's profiler: on a GPU, by the GPU's own timestamps; on a CPU, as a fraction of these steps.
"""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.core import files
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import counted
from pipeline.inference.machine import Machine
from pipeline.tools.profile.trial import (
    WAITING,
    Trial,
    cpu_wait_s,
    note,
    peak_bytes,
    reset_peak,
    stepping,
    steps_for,
    synchronize,
    time_block,
)
from pipeline.train.engine.fit import Report
from pipeline.train.params import TrainParams

BLOCKS, WARMUP_STEPS, CALIBRATION_STEPS = 5, 10, 3
BUDGET_S = 3.0
"""Seconds that all steps without the profiler take together, unless `--steps` gives their number."""
TRACED_S, MOST_TRACED, MOST_OPERATIONS, BAR = 1.0, 10, 10, 30
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

Event = Mapping[str, Any]
Intervals = list[tuple[float, float]]


class Timed(NamedTuple):
    """Mean times of a step in seconds: the whole step, its wait for data, and the time in which the main thread was ready, but other threads or
    processes used the CPUs.
    """

    step_s: float
    data_s: float
    cpu_wait_s: float = 0.0


@dataclass(frozen=True)
class Traced:
    """The profiled steps, with seconds per step. The device computes for `computing_s`, a GPU only receives data from the host for `copying_s`, and
    the step takes `stepping_s` under the profiler, without its wait for data.
    """

    computing_s: float
    copying_s: float
    stepping_s: float
    operations: str
    """The table of PyTorch's profiler with the operations that take the most time, all profiled steps together."""
    document: dict[str, Any]
    """The trace in the format that Chrome and Perfetto read."""

    def write(self, path: Path) -> None:
        """Write the trace to `path`, compressed if its name ends in `.gz`."""
        content = json.dumps(self.document).encode()
        with files.replacing(path) as draft:
            draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


@dataclass(frozen=True)
class Profile:
    """The profile of a training of steps with `samples` samples, of which `steps` were timed. `shares` divides a step by the keys of VERDICTS."""

    title: str
    samples: int
    steps: int
    timed: Timed
    traced: Traced
    shares: Mapping[str, float]
    memory: str

    @property
    def largest(self) -> str:
        return max(self.shares, key=self.shares.__getitem__)

    def lines(self) -> Iterator[str]:
        """Yield the lines that the user sees."""
        step_s = self.timed.step_s
        yield f"{self.title}: {milliseconds(step_s)} a step, {self.samples / step_s:,.0f} samples a second"
        yield f"({counted(self.steps, 'step')} after warm-up, without the profiler; times are those of the median of {BLOCKS} blocks)\n"
        for name, value in self.shares.items():
            yield f"  {name:22} {value:6.1%} {milliseconds(value * step_s):>11}  {'#' * round(BAR * value)}".rstrip()
        yield f"\nMost of the time goes into {self.largest} ({self.shares[self.largest]:.0%}): {VERDICTS[self.largest]}."
        if warning := note(self.timed.cpu_wait_s / step_s):
            yield warning
        yield f"\n{self.traced.operations}\n\n{self.memory}"


def profile_training(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None) -> Profile:
    """Profile a training. `steps` is the number of steps without the profiler; None for as many as take BUDGET_S seconds."""
    trial, device, settings = Trial.of(params, prepared, machine), machine.device, params.train
    with stepping(trial) as reports, tempfile.TemporaryDirectory(prefix="profile-") as folder:
        block(trial, reports, WARMUP_STEPS)
        step_s = block(trial, reports, CALIBRATION_STEPS).step_s
        each = -(-steps // BLOCKS) if steps else steps_for(BUDGET_S / BLOCKS, step_s, least=2)
        reset_peak(device)
        measured = sorted(block(trial, reports, each) for _ in range(BLOCKS))[BLOCKS // 2]
        # captured steps allocate nothing, so theirs is all that is reserved
        used = peak_bytes(device) if trial.why_eager else torch.cuda.memory_reserved(device)
        trace = traced(trial, reports, steps_for(TRACED_S, step_s, least=2, most=MOST_TRACED), Path(folder))
    parts = f" in micro-batches of {settings.micro_batch_size}" if settings.micro_batch_size < settings.batch_size else ""
    kind = "of PyTorch on the GPU" if device.type == "cuda" else "resident memory of this process"
    return Profile(
        title=f"{trial.title}, {counted(settings.batch_size, 'sample')}{parts}",
        samples=settings.batch_size,
        steps=BLOCKS * each,
        timed=measured,
        traced=trace,
        shares=shares(measured, trace, on_gpu=device.type == "cuda"),
        memory=f"memory: {used / 1e6:,.0f} MB at its peak ({kind})",
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


def traced(trial: Trial, reports: Iterator[Report], steps: int, folder: Path) -> Traced:
    """Make `steps` steps under the profiler, and return the measurements. A temporary file is written to `folder`."""
    device = trial.machine.device
    on_gpu = device.type == "cuda"
    trial.clock.marks = True
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        for _ in range(steps):
            with record_function(STEP):
                next(reports)
        synchronize(device)
    trial.clock.marks = False
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    document.pop("host_name", None)  # users share traces, and the host name is private
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    operations = profiler.key_averages().table(sort_by=by, row_limit=MOST_OPERATIONS, max_name_column_width=40).rstrip()
    return Traced(*occupancy(document["traceEvents"], steps, on_gpu=on_gpu), operations, document)


def occupancy(events: Iterable[Event], steps: int, *, on_gpu: bool) -> tuple[float, float, float]:
    """Return `computing_s`, `copying_s` and `stepping_s` of Traced, given the events of a trace of `steps` steps."""
    spans = [event for event in events if event.get("ph") == "X"]

    def union(applies: Callable[[Event], bool]) -> Intervals:
        return merged((event["ts"], event["ts"] + event["dur"]) for event in spans if applies(event))

    waits = union(lambda event: event["name"] == WAITING and event["cat"] == "user_annotation")
    whole = union(lambda event: event["name"] == STEP and event["cat"] == "user_annotation")
    copies = union(lambda event: event["cat"] == "gpu_memcpy" and "HtoD" in event["name"])
    kernels = union(lambda event: event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and "HtoD" not in event["name"])
    operations = union(is_operation)
    computing = total(kernels) if on_gpu else total(operations) - overlap(operations, waits)
    found = (computing, total(copies) - overlap(copies, kernels), total(whole) - overlap(whole, waits))
    return found[0] / steps / 1e6, found[1] / steps / 1e6, found[2] / steps / 1e6


def is_operation(event: Event) -> bool:
    """Return True if a span of a trace is an operation of PyTorch, such as `aten::mm`, and not Python code or the autograd engine."""
    name = event["name"]
    return name.startswith(COMPILED) or (event["cat"] == "cpu_op" and "::" in name and not name.startswith(ENGINE))


def merged(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Return the union of `intervals` as disjoint intervals in order."""
    result: Intervals = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def total(intervals: Intervals) -> float:
    return sum(end - begin for begin, end in intervals)


def overlap(first: Intervals, second: Intervals) -> float:
    """Return the length of the intersection of `first` and `second`, which are results of `merged`."""
    return total(first) + total(second) - total(merged([*first, *second]))


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
