"""Says what limits the speed of a training and what to change: divides the time of a step into waiting for data, copying, computing, host overhead and idle time.

The time of a step is measured without the profiler, which would make the step longer. Only the times of the device come from steps under the
profiler: on a GPU they are the GPU's own timestamps; on a CPU they are used as fractions of the profiled steps.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from pipeline.core import limits
from pipeline.inference.machine import Machine
from pipeline.tools.profile.timing import cpu_wait_s
from pipeline.tools.profile.trace import Traced
from pipeline.tools.profile.trial import Trial, synchronize
from pipeline.train.engine.fit import Report
from pipeline.train.params import TrainParams

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


COSTLY = ("resized_crop", "brightness", "contrast", "saturation", "mixup", "cutmix")
"""The augmentations that take far more time than the others (docs/performance.md)."""


class Situation(NamedTuple):
    """The facts that a remedy depends on.

    `is_resident` is True if the train split is held in the memory of the device, and `has_images` if the inputs are images.
    """

    params: TrainParams
    machine: Machine
    is_resident: bool
    has_images: bool

    @property
    def on_gpu(self) -> bool:
        return self.machine.device.type == "cuda"


def sentence(shares: Shares, situation: Situation) -> str:
    """Return a sentence that names the largest of the shares and its remedy."""
    largest = shares.largest
    texts: Mapping[str, str] = {
        "data": "Most of the time, steps wait for data",
        "copying": "Most of the time, the GPU waits for copies from the host",
        "computing": f"Most of the time, the {'GPU' if situation.on_gpu else 'CPU'} computes, as it should",
        "host": f"Most of the time, {'the GPU waits for' if situation.on_gpu else 'the CPU runs'} Python code between the operations",
        "idle": "Most of the time, this process does nothing",
    }
    remedies = {"data": data, "copying": copying, "computing": computing, "host": host, "idle": idle}
    return f"{texts[largest]} ({getattr(shares, largest):.0%}): {remedies[largest](situation)}."


def data(situation: Situation) -> str:
    if not situation.is_resident:
        return (
            "the train split is read from the disk, so put data/prepared on a faster disk, or free memory until the split takes at most half "
            f"of what is free on the {situation.machine.device}"
        )
    augment = situation.params.augment
    if costly := [f"augment.{name}" for name in COSTLY if augment and getattr(augment, name)]:
        return f"batches are made on the device that trains, so switch off costly augmentations ({', '.join(costly)})" + more_threads(
            situation
        )
    return "batches are made on the device that trains, so make samples smaller or augment them less" + more_threads(situation)


def more_threads(situation: Situation) -> str:
    usable = limits.usable_cpus()
    if situation.on_gpu or situation.machine.threads >= usable:
        return ""
    return f", or set PIPELINE_THREADS={usable}, because it uses {situation.machine.threads} of {usable} CPUs"


def copying(situation: Situation) -> str:
    if situation.is_resident:
        return "use a larger train.batch_size, so that fewer copies are made"
    return (
        "free GPU memory until the train split takes at most half of what is free; it is then held on the GPU and not copied in each step"
    )


def computing(situation: Situation) -> str:
    settings, changes = situation.params.train, []
    if situation.on_gpu:
        if settings.precision == "fp32":
            changes.append("`train.precision: auto`")
        if situation.has_images and not settings.channels_last:
            changes.append("`train.channels_last: true`")
    if settings.compile == "off":
        changes.append("`train.compile: default`")
    if settings.activation_checkpointing:
        changes.append("`train.activation_checkpointing: false`")
    tried = f"`python -m pipeline speedup` measures what {', '.join(changes)} would change here; else " if changes else ""
    device = "a faster GPU" if situation.on_gpu else "a GPU"
    return f"{tried}use {device} or a smaller model{more_threads(situation)}"


def host(situation: Situation) -> str:
    settings = situation.params.train
    changes = []
    if settings.compile == "off" and not settings.activation_checkpointing:
        whole = settings.micro_batch_size == settings.batch_size and settings.lanes == 1
        changes.append(f"`train.compile: {'graphs' if situation.on_gpu and whole else 'default'}`")
    if settings.micro_batch_size < settings.batch_size:
        changes.append("a larger train.micro_batch_size, which makes fewer and larger operations (`python -m pipeline fit-batch`)")
    if settings.report_every_steps < 10:
        changes.append("fewer reports (`train.report_every_steps`)")
    changes.append("a larger train.batch_size")
    return f"try {', or '.join(changes)}; the trace shows which Python code it is"


def idle(_: Situation) -> str:
    return "code of the model or the task sleeps, or waits for a file, a lock or the network; the gaps in the trace show where"
