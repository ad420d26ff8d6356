"""Profiles some steps of a training, describes the result as text, and says what limits the speed and what to change."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.core import limits
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import counted
from pipeline.core.section import formatted
from pipeline.inference.machine import Machine
from pipeline.tools.profile.shares import BLOCKS, Shares, Timed, Traced, block, shares, timed, traced
from pipeline.tools.profile.trial import Trial, note, peak_bytes, reset_peak, stepping, steps_for
from pipeline.train import memory_format
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
    advice: str
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
        yield self.advice
        if warning := note(self.timed.cpu_wait_s / self.timed.step_s):
            yield warning
        yield ""
        yield f"  {'heaviest operations, without those that they call':52} {'share':>6} {'ms a step':>10} {'calls a step':>13}"
        for each in self.traced.operations:
            yield f"  {each.name[:52]:52} {each.share:6.1%} {1000 * each.step_s:10.3f} {each.calls:13.1f}"
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
    suits = memory_format.is_faster(trial.state.model.network, trial.state.precision, machine.device)
    situation = Situation(params, machine, trial.train_split.resident, suits, is_captured=not trial.why_eager)
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
        advice=sentence(found, situation),
        memory_bytes=used,
    )


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


COSTLY = ("resized_crop", "brightness", "contrast", "saturation", "transforms", "mixup", "cutmix")
"""The augmentations that take far more time than the others (docs/performance.md)."""


class Situation(NamedTuple):
    """The facts that a remedy depends on.

    `is_resident` is True if the train split is held in the memory of the device, `suits_channels_last` if channels_last is expected to be
    faster, and `is_captured` if steps are captured as CUDA graphs.
    """

    params: TrainParams
    machine: Machine
    is_resident: bool
    suits_channels_last: bool
    is_captured: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.machine.device.type == "cuda"


def sentence(shares: Shares, situation: Situation) -> str:
    """Return a sentence that names the largest of the shares and its remedy."""
    parts: Mapping[str, tuple[str, str]] = {
        "data": ("steps wait for data", data(situation)),
        "copying": ("the GPU waits for copies from the host", copying(situation)),
        "computing": (f"the {'GPU' if situation.on_gpu else 'CPU'} computes, as it should", computing(situation)),
        "host": (f"{'the GPU waits for' if situation.on_gpu else 'the CPU runs'} Python code between the operations", host(situation)),
        "idle": ("this process does nothing", IDLE),
    }
    meaning, remedy = parts[shares.largest]
    return f"Most of the time, {meaning} ({getattr(shares, shares.largest):.0%}): {remedy}."


def data(situation: Situation) -> str:
    if not situation.is_resident:
        return (
            "the train split is read from the disk, so put data/prepared on a faster disk, or free memory until the split takes at most half "
            f"of what is free on the {situation.machine.device}"
        )
    augment = situation.params.augment
    costly = [f"augment.{name}" for name in COSTLY if getattr(augment, name, None)]
    change = f"switch off costly augmentations ({', '.join(costly)})" if costly else "make samples smaller or augment them less"
    return f"batches are made on the device that trains, so {change}{more_threads(situation)}"


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
    settings, on_gpu, suits = situation.params.train, situation.on_gpu, situation.suits_channels_last
    changes = {
        "`train.precision: auto`": on_gpu and settings.precision == "fp32",
        f"`train.channels_last: {formatted(suits)}`": settings.channels_last not in ("auto", suits),
        "`train.compile: default`": settings.compile == "off",
        "`train.activation_checkpointing: false`": settings.activation_checkpointing,
    }
    options = ", ".join(change for change, applies in changes.items() if applies)
    tried = f"`python -m pipeline profile --speedup` measures what {options} would change here; else " if options else ""
    return f"{tried}use {'a faster GPU' if on_gpu else 'a GPU'} or a smaller model{more_threads(situation)}"


def host(situation: Situation) -> str:
    settings = situation.params.train
    graphs = situation.on_gpu and settings.micro_batch_size == settings.batch_size and settings.lanes == 1
    changes = {
        "without PIPELINE_GRAPHS=off, so that steps are captured as CUDA graphs": situation.on_gpu and situation.machine.graphs == "off",
        f"`train.compile: {'graphs' if graphs else 'default'}`": settings.compile == "off"
        and not settings.activation_checkpointing
        and not situation.is_captured,
        "a larger train.micro_batch_size, which makes fewer and larger operations (`python -m pipeline profile --fit-batch`)": (
            settings.micro_batch_size < settings.batch_size
        ),
        "fewer reports (`train.report_every_steps`)": settings.report_every_steps < 10,
        "a larger train.batch_size": True,
    }
    return f"try {', or '.join(change for change, applies in changes.items() if applies)}; the trace shows which Python code it is"


IDLE = "code of the model or the task sleeps, or waits for a file, a lock or the network; the gaps in the trace show where"
