"""Divides the time of a step into waiting for data, copying to the device, computing, host overhead, and idle time.

The time of a step is measured without the profiler, which would make the step longer. Only the times of the device come from steps under the
profiler: on a GPU they are the GPU's own timestamps; on a CPU they are used as fractions of the profiled steps.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pipeline.engine.fit import Report
from pipeline.profiling.cpu_contention import cpu_wait_s
from pipeline.profiling.trace import Traced
from pipeline.profiling.trial import Trial, synchronize

BLOCKS = 5


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
    device, clock = trial.machine.device, trial.clock
    synchronize(device)
    waited_s, waited_processor_s = clock.elapsed_s, clock.processor_s
    start_s, start_processor_s, start_wait_s = time.perf_counter(), time.process_time(), cpu_wait_s()
    for _ in range(steps):
        next(reports)
    synchronize(device)
    elapsed_s, processor_s = time.perf_counter() - start_s, time.process_time() - start_processor_s
    outside_s = processor_s - (clock.processor_s - waited_processor_s)
    return Timed(elapsed_s / steps, (clock.elapsed_s - waited_s) / steps, outside_s / steps, (cpu_wait_s() - start_wait_s) / steps)


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
