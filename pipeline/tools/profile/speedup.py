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

    If the option could not be measured, `obstacle` is the reason, and the other values are None.
    """

    name: str
    step_s: float | None = None
    speed: Ratio | None = None
    obstacle: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A training to measure in blocks of `count` steps."""

    trial: Trial
    step: trials.Step
    count: int

    def claim(self) -> None:
        """Set PyTorch's determinism as this training has it."""
        set_determinism(self.trial.params.train.deterministic, training=True)


def print_comparison(params: TrainParams, prepared: Prepared, machine: Machine, *, steps: int | None) -> None:
    """Print a table of the training as configured and of each option, and how it was measured.

    `steps` is as in `compare_options`.
    """
    print(f"{params.model.title} on {machine.device} ({machine.name})")
    crowding = trials.watch()
    printed, kept = tee(compare_options(params, prepared, machine, steps=steps))
    for text in table(printed, params.train.batch_size):
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
    with begun(Option(CONFIGURED), params, prepared, machine, steps) as configured:
        wait = partial(trials.synchronize, machine.device)
        seconds = [trials.time_block(configured.step, configured.count, wait) for _ in range(ROUNDS)]
        yield OptionSpeed(CONFIGURED, statistics.median(seconds), SAME)
        for option in options(params, prepared, machine, channels_last=configured.trial.state.model.channels_last):
            try:
                with begun(option, params, prepared, machine, steps) as candidate:
                    row = compared(option.name, candidate, configured)
            except Exception as error:  # an option that torch cannot do here must not end the comparison
                row = OptionSpeed(option.name, obstacle=obstacle_of(error))
            yield row
    set_determinism(params.train.deterministic, training=True)


@contextmanager
def begun(option: Option, params: TrainParams, prepared: Prepared, machine: Machine, steps: int | None) -> Iterator[Candidate]:
    """Within this context, give the training with `option` after its first steps, in which kernels are chosen or compiled. Its blocks have
    `steps` steps, as in `compare_options`.

    Raises Refusal if the option does not fit the model, the data or the machine.
    """
    trial = Trial.of(params, prepared, machine, changes={"report_every_steps": trials.NEVER, **option.changes})
    with trials.stepping(trial) as reports:
        step, wait = partial(next, reports), partial(trials.synchronize, machine.device)
        Candidate(trial, step, 0).claim()
        trials.time_block(step, WARMUP_STEPS, wait)
        step_s = trials.time_block(step, CALIBRATION_STEPS, wait)
        count = trials.steps_for(BLOCK_S, step_s) if steps is None else min(steps, trials.steps_for(10 * BLOCK_S, step_s))
        yield Candidate(trial, step, count)


def compared(name: str, candidate: Candidate, configured: Candidate) -> OptionSpeed:
    """Measure the option called `name` in blocks that alternate with those as configured."""
    both = {CONFIGURED: configured, name: candidate}
    seconds = trials.interleaved(
        {each: (training.step, training.count) for each, training in both.items()},
        rounds=ROUNDS,
        synchronize=partial(trials.synchronize, candidate.trial.machine.device),
        before=lambda each: both[each].claim(),
    )
    if candidate.trial.progress.micro_batch_changes:
        return OptionSpeed(name, obstacle="out of memory")
    return OptionSpeed(name, statistics.median(seconds[name]), trials.ratios(seconds[CONFIGURED], seconds[name]))


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
    """Return a row as text: the name, milliseconds a step, samples a second and the speed."""
    if row.step_s is None or row.speed is None:
        return (row.name, "", "", f"not available: {row.obstacle}")
    speed = f"{row.speed.median:.2f}" + ("" if row.speed == SAME else f" ({row.speed.least:.2f} to {row.speed.most:.2f})")
    return (row.name, f"{1000 * row.step_s:.2f}", f"{samples / row.step_s:,.0f}", speed)


HEADINGS, WIDTHS = ("option", "ms a step", "samples/s", "speed"), (31, 10, 10, 22)


def table(rows: Iterable[OptionSpeed], samples: int) -> Iterator[str]:
    """Yield the lines of a Markdown table of `rows`, with cells of fixed width. `samples` is the number of samples of a step."""
    for each in chain((HEADINGS, ("---",) * len(HEADINGS)), (cells(row, samples) for row in rows)):
        yield "| " + " | ".join(f"{cell:{width}}" for cell, width in zip(each, WIDTHS, strict=True)) + " |"


def always_faster(rows: list[OptionSpeed]) -> str:
    """Return the options that were faster than the training as configured in every round, the fastest first, as a text; "" if there is none."""
    faster = [(row.speed.median, row.name) for row in rows if row.speed and row.speed.least > 1.0]
    return ", ".join(f"{name} ({speed:.2f} times as fast)" for speed, name in sorted(faster, reverse=True))
