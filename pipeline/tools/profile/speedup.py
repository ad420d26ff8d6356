"""Compares the speed of a training on this machine: as configured, and with each option that could make it faster.

Blocks of steps with an option alternate with blocks as configured, so that a drift of the machine's speed affects both alike.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason
from pipeline.inference.machine import Machine, set_determinism
from pipeline.tools.profile.trial import NEVER, Trial, begin_block, interleaved, ratios, stepping, time_block
from pipeline.train.params import TrainParams

CONFIGURED = "as configured"
ROUNDS, BLOCK_S = 5, 0.5
PRECISIONS = ("fp32", "bf16", "fp16", "bf16-true")
ROW = "| {:31} | {:10} | {:10} | {:22} |"
"""A row of a Markdown table, whose widths are fixed before it is measured."""


def print_comparison(params: TrainParams, prepared: Prepared, machine: Machine) -> None:
    """Print a table of the training as configured and of each option, each row as soon as it is measured, and the options that were faster in
    every round.
    """
    print(f"{params.model.title} on {machine.device} ({machine.name})")
    print(ROW.format("option", "ms a step", "samples/s", "speed"), ROW.format(*["---"] * 4), sep="\n")
    faster = []

    def print_row(name: str, step_s: float, speed: str) -> None:
        print(ROW.format(name, f"{1000 * step_s:.2f}", f"{params.train.batch_size / step_s:,.0f}", speed), flush=True)

    with begun({}, params, prepared, machine) as (configured, run_configured):
        print_row(CONFIGURED, statistics.median(run_configured() for _ in range(ROUNDS)), "1.00")
        for key, value in options(params, prepared, machine, channels_last=configured.state.model.channels_last):
            name = f"{key}: {str(value).lower()}"
            try:
                with begun({key: value}, params, prepared, machine) as (trial, run):
                    seconds = interleaved({CONFIGURED: run_configured, name: run}, ROUNDS)
                obstacle = "out of memory" if trial.progress.micro_batch_changes else ""
            except Refusal as refusal:
                obstacle = str(replace(refusal.problems[0], file=""))
            except Exception as error:  # an option that torch cannot do here must not end the comparison
                obstacle = f"{type(error).__name__}: {reason(error)}"
            if obstacle:
                print(ROW.format(name, "", "", f"not available: {obstacle}"), flush=True)
                continue
            speed = ratios(seconds[CONFIGURED], seconds[name])
            print_row(name, statistics.median(seconds[name]), f"{speed.median:.2f} ({speed.least:.2f} to {speed.most:.2f})")
            if speed.least > 1.0:
                faster.append(f"{name} ({speed.median:.2f} times as fast)")
    print(f"\nThe speed is the median (minimum to maximum) of {ROUNDS} rounds. Faster in every round: {', '.join(faster) or 'no option'}.")


def options(params: TrainParams, prepared: Prepared, machine: Machine, *, channels_last: bool) -> Iterator[tuple[str, object]]:
    """Yield the keys of the section `train` and their other values that could be faster. `channels_last` is the present memory format."""
    settings, on_gpu = params.train, machine.device.type == "cuda"
    precision = "fp32" if settings.precision == "auto" and not on_gpu else settings.precision
    yield from (("precision", name) for name in PRECISIONS if name != precision)
    if prepared.spec.inputs.augmented == "pixels":
        yield "channels_last", not channels_last
    yield from (("compile", mode) for mode in ("off", "default", *(["graphs"] if on_gpu else [])) if mode != settings.compile)
    yield "deterministic", not settings.deterministic
    lane_size = settings.batch_size // settings.lanes
    present = min(settings.micro_batch_size, lane_size)
    # the whole batch last: Linux kills a process whose memory is more than a machine without a GPU has
    for size in dict.fromkeys((present // 2, lane_size)):
        if size != present and size and lane_size % size == 0 and settings.compile != "graphs":
            yield "micro_batch_size", size


@contextmanager
def begun(
    changes: Mapping[str, object], params: TrainParams, prepared: Prepared, machine: Machine
) -> Iterator[tuple[Trial, Callable[[], float]]]:
    """Within this context, give the training with `changes` in the section `train`, and a function that times a block of its steps.

    Raises Refusal if the changes do not fit the model, the data or the machine.
    """
    trial = Trial.of(params, prepared, machine, changes={"report_every_steps": NEVER, **changes})
    with stepping(trial) as reports:
        step = partial(next, reports)
        set_determinism(trial.params.train.deterministic, training=True)  # a setting of the whole process
        count = begin_block(step, machine.device, BLOCK_S)

        def run() -> float:
            set_determinism(trial.params.train.deterministic, training=True)
            return time_block(step, count, machine.device)

        yield trial, run
