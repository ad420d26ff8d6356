"""Profiles some steps of a training, describes the result as text, and says what limits the speed and what to change."""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import counted
from pipeline.inference.machine import Machine
from pipeline.tools.profile.shares import BLOCKS, Shares, Timed, Traced, block, shares, timed, traced
from pipeline.tools.profile.trial import Trial, note, peak_bytes, reset_peak, stepping, steps_for
from pipeline.train.params import TrainParams

WARMUP_STEPS = 10
CALIBRATION_STEPS = 3
BUDGET_S = 3.0
"""Seconds that all steps without the profiler take together, unless `--steps` gives their number."""
TRACED_S, MOST_TRACED = 1.0, 10
NAMES = {"data": "waiting for data", "copying": "copying to the device", "computing": "computing", "host": "host overhead", "idle": "idle"}
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
    memory_bytes: int
    """The memory peak of the steps."""

    def lines(self) -> Iterator[str]:
        """Yield the lines that the user sees."""
        rate = self.samples / self.timed.step_s
        yield f"{self.title}: {milliseconds(self.timed.step_s)} a step, {rate:,.0f} samples a second"
        yield f"({counted(self.steps, 'step')} after warm-up, without the profiler; times are those of the median of {BLOCKS} blocks)"
        yield ""
        for key, value in asdict(self.shares).items():
            yield f"  {NAMES[key]:22} {value:6.1%} {milliseconds(value * self.timed.step_s):>11}  {'#' * round(BAR * value)}".rstrip()
        yield ""
        largest = self.shares.largest
        yield f"Most of the time, {MEANINGS[largest]} ({getattr(self.shares, largest):.0%}): {REMEDIES[largest]}."
        if warning := note(self.timed.cpu_wait_s / self.timed.step_s):
            yield warning
        yield ""
        yield self.traced.operations
        yield ""
        kind = "of PyTorch on the GPU" if self.device == "cuda" else "resident memory of this process"
        yield f"memory: {self.memory_bytes / 1e6:,.0f} MB at its peak ({kind})"


def profile_training(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None) -> Profile:
    """Profile a training. `steps` is the number of steps without the profiler; None for as many as take BUDGET_S seconds."""
    trial = Trial.of(params, prepared, machine)
    on_gpu = machine.device.type == "cuda"
    with stepping(trial) as reports, tempfile.TemporaryDirectory(prefix="profile-") as folder:
        block(trial, reports, WARMUP_STEPS)
        step_s = block(trial, reports, CALIBRATION_STEPS).step_s
        each = -(-steps // BLOCKS) if steps else steps_for(BUDGET_S / BLOCKS, step_s, least=2)
        reset_peak(machine.device)
        measured = timed(trial, reports, each)
        # captured steps allocate nothing, so theirs is all that is reserved
        used = peak_bytes(machine.device) if trial.why_eager else torch.cuda.memory_reserved(machine.device)
        trace = traced(trial, reports, steps_for(TRACED_S, step_s, least=2, most=MOST_TRACED), Path(folder))
    found = shares(measured, trace, on_gpu=on_gpu)
    settings = params.train
    parts = f" in micro-batches of {settings.micro_batch_size}" if settings.micro_batch_size < settings.batch_size else ""
    return Profile(
        title=f"{trial.title}, {counted(settings.batch_size, 'sample')}{parts}",
        device=machine.device.type,
        samples=settings.batch_size,
        steps=BLOCKS * each,
        timed=measured,
        traced=trace,
        shares=found,
        memory_bytes=used,
    )


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


MEANINGS = {
    "data": "steps wait for data",
    "copying": "the GPU waits for copies from the host",
    "computing": "the device computes, as it should",
    "host": "Python code runs between the operations",
    "idle": "this process does nothing",
}
REMEDIES = {
    "data": "make samples smaller, augment them less, use more threads, or free memory, so that the train split is not read from the disk",
    "copying": "free GPU memory until the train split is held there, or make fewer copies by a larger train.batch_size",
    "computing": "`python -m pipeline profile --speedup` measures what would help here; else use a faster device, more threads or a smaller model",
    "host": "try `train.compile`, larger micro-batches or batches, or fewer reports; the trace shows which Python code it is",
    "idle": "code of the model or the task sleeps, or waits for a file, a lock or the network; the gaps in the trace show where",
}
"""Each share has the remedy for the case that it is the largest."""
