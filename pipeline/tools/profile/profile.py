"""Profiles some steps of a training, and describes the result as text, JSON, a trace and a table of memory."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.core import files
from pipeline.core.inputs.image import ImageInputs
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import counted
from pipeline.inference.machine import Machine
from pipeline.tools.profile import micro_batches, remedy, timing
from pipeline.tools.profile.remedy import BLOCKS, Shares, Timed, block, shares, timed
from pipeline.tools.profile.trace import Traced, traced
from pipeline.tools.profile.trial import Trial, stepping, steps_for
from pipeline.train.engine.fit import Report
from pipeline.train.params import TrainParams

WARMUP_STEPS = 10
CALIBRATION_STEPS = 3
BUDGET_S = 3.0
"""Seconds that all steps without the profiler take together, unless `--steps` gives their number."""
TRACED_S, MOST_TRACED = 1.0, 10
MEMORY_S, MOST_MEMORY = 2.0, 100
LEAST_FOR_GROWTH, GROWTH = 20, 5e-4
"""Memory counts as growing if it increases by more than GROWTH times its peak per step. Fewer than LEAST_FOR_GROWTH steps do not show growth."""
NAMES = {
    "data": "waiting for data",
    "copying": "copying to the device",
    "computing": "computing",
    "host": "host overhead",
    "idle": "idle",
}
BAR = 30


@dataclass(frozen=True)
class Profile:
    """The profile of a training: times, shares, heaviest operations and memory."""

    title: str
    device: str
    samples: int
    """Number of samples in a step."""
    steps: int
    """Number of steps that were timed without the profiler."""
    timed: Timed
    traced: Traced
    shares: Shares
    advice: str
    memory_bytes: Sequence[int]
    """The memory peak of each of some steps."""

    def lines(self) -> Iterator[str]:
        """Yield the lines that the user sees."""
        rate = self.samples / self.timed.step_s
        yield f"{self.title}: {milliseconds(self.timed.step_s)} a step, {rate:,.0f} samples a second"
        yield f"({counted(self.steps, 'step')} after warm-up, without the profiler; times are those of the median of {BLOCKS} blocks)"
        yield ""
        for key, value in asdict(self.shares).items():
            yield f"  {NAMES[key]:22} {value:6.1%} {milliseconds(value * self.timed.step_s):>11}  {'#' * round(BAR * value)}".rstrip()
        yield ""
        yield self.advice
        if note := timing.note(self.timed.cpu_wait_s / self.timed.step_s):
            yield note
        yield ""
        yield f"  {'heaviest operations, without those that they call':52} {'share':>6} {'ms a step':>10} {'calls a step':>13}"
        for each in self.traced.operations:
            yield f"  {each.name[:52]:52} {each.share:6.1%} {1000 * each.step_s:10.3f} {each.calls:13.1f}"
        yield ""
        yield f"memory: {memory_line(self.memory_bytes, self.device)}"

    def record(self) -> dict[str, Any]:
        """Return the profile as JSON data, without the trace and the memory of each step."""
        return {
            "title": self.title,
            "steps": self.steps,
            "step_s": self.timed.step_s,
            "samples_per_second": self.samples / self.timed.step_s,
            "shares": asdict(self.shares),
            "advice": self.advice,
            "operations": [each._asdict() for each in self.traced.operations],
            "memory_peak_bytes": max(self.memory_bytes),
        }

    def memory_table(self) -> str:
        """Return the memory peaks of the steps as CSV."""
        return files.as_csv(["step", "peak_bytes"], enumerate(self.memory_bytes, 1))


def profile_training(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None) -> Profile:
    """Profile a training. `steps` is the number of steps without the profiler; None for as many as take BUDGET_S seconds."""
    trial = Trial.of(params, prepared, machine)
    on_gpu = machine.device.type == "cuda"
    with stepping(trial) as reports, tempfile.TemporaryDirectory(prefix="profile-") as folder:
        block(trial, reports, WARMUP_STEPS)
        step_s = block(trial, reports, CALIBRATION_STEPS).step_s
        each = -(-steps // BLOCKS) if steps else steps_for(BUDGET_S / BLOCKS, step_s, least=2)
        measured = timed(trial, reports, each)
        used = memory_of_steps(trial, reports, steps_for(MEMORY_S, step_s, least=5, most=MOST_MEMORY))
        trace = traced(trial, reports, steps_for(TRACED_S, step_s, least=2, most=MOST_TRACED), Path(folder))
    found = shares(measured, trace, on_gpu=on_gpu)
    situation = remedy.Situation(params, machine, trial.train_split.resident, isinstance(prepared.spec.inputs, ImageInputs))
    settings = params.train
    parts = f"{counted(settings.batch_size, 'sample')}" + (
        f" in micro-batches of {settings.micro_batch_size}" if settings.micro_batch_size < settings.batch_size else ""
    )
    return Profile(
        title=f"{params.model.title} on {machine.device} ({machine.name}) in {trial.state.precision}, {parts}",
        device=machine.device.type,
        samples=settings.batch_size,
        steps=BLOCKS * each,
        timed=measured,
        traced=trace,
        shares=found,
        advice=remedy.sentence(found, situation),
        memory_bytes=used,
    )


def memory_of_steps(trial: Trial, reports: Iterator[Report], steps: int) -> list[int]:
    """Make `steps` steps, and return the peak of the memory in each."""
    device, peaks = trial.machine.device, []
    for _ in range(steps):
        micro_batches.reset_peak(device)
        next(reports)
        peaks.append(micro_batches.peak_bytes(device))
    return peaks


def memory_line(peaks: Sequence[int], device: str) -> str:
    """Describe the memory of steps: its peak, and whether it grows. `peaks` are those of each step.

    The first half of the steps is left out, because a process takes memory for caches in its first steps.
    """
    kind = "allocated on the GPU" if device == "cuda" else "resident memory of this process"
    line = f"{max(peaks) / 1e6:,.0f} MB at its peak ({kind})"
    if len(peaks) < LEAST_FOR_GROWTH:
        return line
    quarter = len(peaks) // 4
    growth = (max(peaks[3 * quarter :]) - max(peaks[2 * quarter : 3 * quarter])) / quarter
    if growth > GROWTH * max(peaks):
        return f"{line}; it grows by {growth / 1e6:.2f} MB a step: a leak, if it goes on"
    return f"{line}; it does not grow from step to step"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
