"""Measures how the time of a step is divided into waiting for data, copying, computing, host overhead and idle time.

The time of a step is measured without the profiler, which would make the step longer. Only the times of the device, the heaviest operations
and the trace come from steps under PyTorch's profiler: on a GPU, the times are the GPU's own timestamps; on a CPU, they are used as fractions
of the profiled steps.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.core import files
from pipeline.tools.profile.trial import WAITING, DataClock, Trial, cpu_wait_s, synchronize, time_block
from pipeline.train.engine.fit import Report

BLOCKS = 5
STEP = "step"
MOST_OPERATIONS = 10
COMPILED = "## Call CompiledFxGraph"
"""The names of events that contain compiled kernels begin with this text. On a CPU, such kernels have no events of their own."""
ENGINE = ("autograd::", "torch::autograd::")
"""The names of events of the autograd engine begin with one of these texts. Such an event may contain Python code, for example hooks."""

Event = Mapping[str, Any]
Intervals = list[tuple[float, float]]


@dataclass(frozen=True)
class Traced:
    """The measurements of the profiled steps. All times are seconds per step.

    `computing_s` is the time in which the device runs operations, and `copying_s` the time in which a GPU only receives data from the host.
    `stepping_s` is the time of a step under the profiler without its wait for data.
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


def traced(trial: Trial, reports: Iterator[Report], steps: int, folder: Path) -> Traced:
    """Make `steps` steps under the profiler, and return the measurements. A temporary file is written to `folder`."""
    device = trial.machine.device
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    trial.clock.marks = True
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            with record_function(STEP):
                next(reports)
        synchronize(device)
    trial.clock.marks = False
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    by = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    operations = profiler.key_averages().table(sort_by=by, row_limit=MOST_OPERATIONS, max_name_column_width=40).rstrip()
    document.pop("host_name", None)  # users share traces, and the host name is private
    computing_s, copying_s, stepping_s = occupancy(document["traceEvents"], steps, on_gpu=device.type == "cuda")
    return Traced(computing_s, copying_s, stepping_s, operations, document)


def occupancy(events: Iterable[Event], steps: int, *, on_gpu: bool) -> tuple[float, float, float]:
    """Return `computing_s`, `copying_s` and `stepping_s` of Traced, given the events of a trace of `steps` steps."""
    spans = [event for event in events if event.get("ph") == "X"]

    def union(applies: Callable[[Event], bool]) -> Intervals:
        return merged((event["ts"], event["ts"] + event["dur"]) for event in spans if applies(event))

    waits = union(lambda event: event["name"] == WAITING and event["cat"] == "user_annotation")
    whole = union(lambda event: event["name"] == STEP and event["cat"] == "user_annotation")
    if on_gpu:
        copies = union(lambda event: event["cat"] == "gpu_memcpy" and "HtoD" in event["name"])
        kernels = union(lambda event: event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and "HtoD" not in event["name"])
        computing, copying = total(kernels), total(copies) - overlap(copies, kernels)
    else:
        operations = union(is_operation)
        computing, copying = total(operations) - overlap(operations, waits), 0.0
    microseconds = (computing, copying, total(whole) - overlap(whole, waits))
    return microseconds[0] / steps / 1e6, microseconds[1] / steps / 1e6, microseconds[2] / steps / 1e6


def is_operation(event: Event) -> bool:
    """Return True if a span of a trace is an operation of PyTorch, such as `aten::mm`, and not Python code or the autograd engine."""
    name = event["name"]
    if name.startswith(COMPILED):
        return True
    return bool(event["cat"] == "cpu_op" and "::" in name and not name.startswith(ENGINE))


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


@dataclass(frozen=True)
class Timed:
    """The mean times of a step without the profiler, in seconds: `step_s` of the whole step, and `data_s` of its wait for data.

    `processor_s` is the CPU time that all threads of this process use outside of the wait for data. `cpu_wait_s` is the time in which the main
    thread was ready to run, but waited because other threads or processes used the CPUs.
    """

    step_s: float
    data_s: float
    processor_s: float
    cpu_wait_s: float = 0.0


@dataclass(frozen=True)
class Shares:
    """Shares of the time of a step. Their sum is 1."""

    data: float
    copying: float
    computing: float
    host: float
    idle: float

    @property
    def largest(self) -> str:
        """Return the name of the largest share."""
        values = asdict(self)
        return max(values, key=values.__getitem__)


def timed(trial: Trial, reports: Iterator[Report], steps: int) -> Timed:
    """Make `steps` steps in each of BLOCKS blocks without the profiler. Return what was measured in the block of median duration."""
    blocks = sorted((block(trial, reports, steps) for _ in range(BLOCKS)), key=lambda each: each.step_s)
    return blocks[BLOCKS // 2]


def block(trial: Trial, reports: Iterator[Report], steps: int) -> Timed:
    """Make `steps` steps, and return their mean times. The host waits for the device only before the first and after the last of them."""
    start = counters(trial.clock)
    step_s = time_block(partial(next, reports), steps, partial(synchronize, trial.machine.device))
    data_s, data_processor_s, processor_s, wait_s = ((end - begin) / steps for end, begin in zip(counters(trial.clock), start, strict=True))
    return Timed(step_s, data_s, processor_s - data_processor_s, wait_s)


def counters(clock: DataClock) -> tuple[float, ...]:
    """Return the seconds so far of waiting for data, their CPU time, the CPU time of this process, and its wait for a CPU."""
    return clock.elapsed_s, clock.processor_s, time.process_time(), cpu_wait_s()


def shares(timed: Timed, traced: Traced, *, on_gpu: bool) -> Shares:
    """Divide the time of a step.

    On a GPU, the times of computing and copying are the sums of the GPU's timestamps. The GPU does nothing in the rest of the step: it waits
    for data as long as the host does, and waits for the host in the remaining time. On a CPU, computing takes the same fraction of the step
    outside of the wait for data as it took under the profiler. The time that is left is host overhead while a thread of this process runs or
    waits for a CPU, and idle while the process sleeps.
    """
    if on_gpu:
        computing_s = min(traced.computing_s, timed.step_s)
        copying_s = min(traced.copying_s, timed.step_s - computing_s)
        data_s = min(timed.data_s, timed.step_s - computing_s - copying_s)
    else:
        data_s, copying_s = min(timed.data_s, timed.step_s), 0.0
        fraction = min(1.0, traced.computing_s / traced.stepping_s) if traced.stepping_s else 0.0
        computing_s = (timed.step_s - data_s) * fraction
    outside_s = timed.step_s - timed.data_s
    rest_s = timed.step_s - computing_s - copying_s - data_s
    running = min(1.0, timed.processor_s / outside_s + timed.cpu_wait_s / timed.step_s) if outside_s > 0 else 1.0
    parts = (data_s, copying_s, computing_s, rest_s * running, rest_s * (1 - running))
    return Shares(*(part / timed.step_s for part in parts))
