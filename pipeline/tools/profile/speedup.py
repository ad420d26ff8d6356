"""Compares the speed of a training on this machine: as configured, and with each option that could make it faster.

Blocks of steps with an option alternate with blocks as configured, so that a drift of the machine's speed affects both alike.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, tee
from typing import Any, NamedTuple

import torch

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import reason
from pipeline.inference.machine import Machine, set_determinism
from pipeline.tools.profile import trial as trials
from pipeline.tools.profile.trial import Ratio, Trial
from pipeline.train.params import TrainParams

CONFIGURED = "as configured"
SAME = Ratio(1.0, 1.0, 1.0)
"""The speed of the training that others are compared with."""
ROUNDS, WARMUP_STEPS, CALIBRATION_STEPS = 5, 5, 3
BLOCK_S = 0.5
PRECISIONS = ("fp32", "bf16", "fp16", "bf16-true")


class Option(NamedTuple):
    """A change of the training: `changes` are new values in the section `train`."""

    name: str
    changes: Mapping[str, Any] = {}


@dataclass(frozen=True)
class OptionSpeed:
    """The measurement of an option. `speed` is the ratio of its speed to that of the training as configured.

    `peak_bytes` is the peak memory of its tensors on the GPU; None on a CPU. If the option could not be measured, `obstacle` is the reason,
    and the other values are None.
    """

    name: str
    step_s: float | None = None
    speed: Ratio | None = None
    peak_bytes: int | None = None
    obstacle: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A training to measure in blocks of steps. `held_bytes` is the GPU memory that was in use before this training began."""

    trial: Trial
    step: trials.Step
    held_bytes: int

    def claim(self) -> None:
        """Set PyTorch's determinism as this training has it, and reset the memory peak."""
        set_determinism(self.trial.params.train.deterministic, training=True)
        if self.trial.machine.device.type == "cuda":
            trials.reset_peak(self.trial.machine.device)

    def run(self, steps: int) -> float:
        """Make `steps` steps, and return the seconds per step."""
        return trials.time_block(self.step, steps, partial(trials.synchronize, self.trial.machine.device))

    def taken_bytes(self) -> int | None:
        """Return the peak memory of the training's tensors on the GPU in its last block; None on a CPU."""
        device = self.trial.machine.device
        return trials.peak_bytes(device) - self.held_bytes if device.type == "cuda" else None


def print_comparison(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None) -> None:
    """Print a table of the training as configured and of each option, and how it was measured.

    `steps` is as in `compare_options`.
    """
    print(f"{params.model.title} on {machine.device} ({machine.name})")
    crowding = trials.watch()
    printed, kept = tee(compare_options(params, prepared, machine, steps=steps))
    for text in table(GPU_MEMORY if machine.device.type == "cuda" else None, printed, params.train.batch_size):
        print(text, flush=True)
    rows = list(kept)
    how = "\n\n".join(filter(None, (method(params, machine.device), crowding())))
    faster = always_faster(rows)
    print(f"\n{how}\n\n{f'Faster here in every round: {faster}.' if faster else 'No option was faster in every round.'}")


def options(params: TrainParams, prepared: Prepared, machine: Machine, *, channels_last: bool) -> Iterator[Option]:
    """Yield the options that differ from the training as configured. `channels_last` is its memory format."""
    settings, on_gpu = params.train, machine.device.type == "cuda"

    def changed(name: str, value: object) -> Option:
        return Option(f"{name}: {str(value).lower()}", {name: value})

    effective = "fp32" if settings.precision == "auto" and not on_gpu else settings.precision
    yield from (changed("precision", name) for name in PRECISIONS if name != effective)
    if prepared.spec.inputs.augmented == "pixels":
        yield changed("channels_last", not channels_last)
    yield from (changed("compile", mode) for mode in ("off", "default", *(["graphs"] if on_gpu else [])) if mode != settings.compile)
    yield changed("lanes", 2 if settings.lanes == 1 else 1)
    yield changed("activation_checkpointing", not settings.activation_checkpointing)
    yield changed("deterministic", not settings.deterministic)
    lane_size = settings.batch_size // settings.lanes
    present = min(settings.micro_batch_size, lane_size)
    # the whole batch last: Linux kills a process whose memory is more than a machine without a GPU has
    for size in dict.fromkeys((present // 2, lane_size)):
        if size != present and size and lane_size % size == 0 and settings.compile != "graphs":
            yield changed("micro_batch_size", size)


def compare_options(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None) -> Iterator[OptionSpeed]:
    """Yield a row for the training as configured, and then one for each option, as soon as it is measured.

    `steps` is the number of steps of a block; None for as many as take BLOCK_S seconds. A block takes at most about 10 * BLOCK_S seconds.
    """
    with begun(Option(CONFIGURED), params, prepared, machine, steps) as (configured, count):
        seconds = [configured.run(count) for _ in range(ROUNDS)]
        yield OptionSpeed(CONFIGURED, statistics.median(seconds), SAME, configured.taken_bytes())
        for option in options(params, prepared, machine, channels_last=configured.trial.state.model.channels_last):
            yield row(option, configured, count, params, prepared, steps=steps)
    set_determinism(params.train.deterministic, training=True)


@contextmanager
def begun(option: Option, params: TrainParams, prepared: Prepared, machine: Machine, steps: int | None) -> Iterator[tuple[Candidate, int]]:
    """Within this context, give the training with `option` after its first steps, in which kernels are chosen or compiled, and the number of
    steps of its blocks: `steps`, as in `compare_options`.

    Raises Refusal if the option does not fit the model, the data or the machine.
    """
    held_bytes = torch.cuda.memory_allocated(machine.device) if machine.device.type == "cuda" else 0
    trial = Trial.of(params, prepared, machine, changes={"report_every_steps": trials.NEVER, **option.changes})
    with trials.stepping(trial) as reports:
        candidate = Candidate(trial, partial(next, reports), held_bytes)
        candidate.claim()
        candidate.run(WARMUP_STEPS)
        step_s = candidate.run(CALIBRATION_STEPS)
        yield candidate, trials.steps_for(BLOCK_S, step_s) if steps is None else min(steps, trials.steps_for(10 * BLOCK_S, step_s))


def row(option: Option, configured: Candidate, count: int, params: TrainParams, prepared: Prepared, *, steps: int | None) -> OptionSpeed:
    """Measure an option in blocks that alternate with those as configured, which have `count` steps. Any error becomes the row's obstacle.

    `steps` is the number of steps in the blocks of the option, as in `compare_options`.
    """
    try:
        with begun(option, params, prepared, configured.trial.machine, steps) as (candidate, own_count):
            both = {CONFIGURED: configured, option.name: candidate}
            seconds = trials.interleaved(
                {CONFIGURED: (configured.step, count), option.name: (candidate.step, own_count)},
                rounds=ROUNDS,
                synchronize=partial(trials.synchronize, candidate.trial.machine.device),
                before=lambda name: both[name].claim(),
            )
            if candidate.trial.progress.micro_batch_changes:
                return OptionSpeed(option.name, obstacle="out of memory")
            speed = trials.ratios(seconds[CONFIGURED], seconds[option.name])
            return OptionSpeed(option.name, statistics.median(seconds[option.name]), speed, candidate.taken_bytes())
    except Exception as error:  # an option that torch cannot do here must not end the comparison
        return OptionSpeed(option.name, obstacle=obstacle_of(error))


def obstacle_of(error: Exception) -> str:
    """Return why something could not be measured, for the obstacle of a row."""
    return str(replace(error.problems[0], file="")) if isinstance(error, Refusal) else f"{type(error).__name__}: {reason(error)}"


def method(params: TrainParams, device: torch.device) -> str:
    """Return a paragraph that says how the rows were measured."""
    waits = ", at whose beginning and end only the host waits for the GPU" if device.type == "cuda" else ""
    return (
        f"Steps of {counted(params.train.batch_size, 'sample')}: batch, forward, backward and update, without reports, validations, checkpoints and tracking. "
        f"Medians of {ROUNDS} blocks of steps{waits}. The blocks of each option alternate with those of the training as configured; the speed is "
        f"the ratio within a round: median (minimum to maximum). The first {WARMUP_STEPS + CALIBRATION_STEPS} steps, in which kernels are chosen "
        "and compiled, are not counted."
    )


def cells(row: OptionSpeed, samples: int) -> tuple[str, ...]:
    """Return a row as text: the name, milliseconds a step, samples a second, the speed and the memory."""
    if row.step_s is None or row.speed is None:
        return (row.name, "", "", f"not available: {row.obstacle}", "")
    speed = f"{row.speed.median:.2f}" + ("" if row.speed == SAME else f" ({row.speed.least:.2f} to {row.speed.most:.2f})")
    used = "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}"
    return (row.name, f"{1000 * row.step_s:.2f}", f"{samples / row.step_s:,.0f}", speed, used)


HEADINGS = ("option", "ms a step", "samples/s", "speed")
WIDTHS = (31, 10, 10, 22, 16)
GPU_MEMORY = "GPU memory in MB"


def table(memory: str | None, rows: Iterable[OptionSpeed], samples: int) -> Iterator[str]:
    """Yield the lines of a Markdown table of `rows`, with cells of fixed width. `samples` is the number of samples of a step.

    `memory` is the heading of the column of memory; without this column if it is None.
    """
    headings = HEADINGS if memory is None else (*HEADINGS, memory)
    for each in chain((headings, ("---",) * len(headings)), (cells(row, samples) for row in rows)):
        yield "| " + " | ".join(f"{cell:{width}}" for cell, width, _ in zip(each, WIDTHS, headings, strict=False)) + " |"


def always_faster(rows: list[OptionSpeed]) -> str:
    """Return the options that were faster than the training as configured in every round, the fastest first, as a text; "" if there is none."""
    faster = [(row.speed.median, row.name) for row in rows if row.speed and row.speed.least > 1.0]
    return ", ".join(f"{name} ({speed:.2f} times as fast)" for speed, name in sorted(faster, reverse=True))
