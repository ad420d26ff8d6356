"""Compares the speed of a training on this machine: as configured, and with each option that could make it faster.

Blocks of steps with an option alternate with blocks as configured, so that a drift of the machine's speed affects both alike.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason
from pipeline.inference.machine import Machine, set_determinism
from pipeline.tools.profile.trial import NEVER, Ratio, Trial, begin_block, interleaved, ratios, stepping, time_block
from pipeline.train.params import TrainParams

CONFIGURED = "as configured"
ROUNDS, BLOCK_S = 5, 0.5
PRECISIONS = ("fp32", "bf16", "fp16", "bf16-true")
ROW = "| {:31} | {:10} | {:10} | {:22} |"
"""A row of a Markdown table. Each is printed as soon as it is measured, so the widths are fixed."""


@dataclass(frozen=True)
class OptionSpeed:
    """The measurement of an option. `speed` is the ratio of its speed to that of the training as configured, None for that training itself.

    If the option could not be measured, `obstacle` is the reason, and `step_s` and `speed` are None.
    """

    name: str
    step_s: float | None = None
    speed: Ratio | None = None
    obstacle: str | None = None

    def cells(self, samples: int) -> tuple[str, str, str, str]:
        """Return the cells of its row: the name, milliseconds a step, samples a second and the speed. A step has `samples` samples."""
        if self.step_s is None:
            return self.name, "", "", f"not available: {self.obstacle}"
        speed = f"{self.speed.median:.2f} ({self.speed.least:.2f} to {self.speed.most:.2f})" if self.speed else "1.00"
        return self.name, f"{1000 * self.step_s:.2f}", f"{samples / self.step_s:,.0f}", speed


def print_comparison(params: TrainParams, prepared: Prepared, machine: Machine) -> None:
    """Print a table of the training as configured and of each option, and the options that were faster in every round."""
    print(f"{params.model.title} on {machine.device} ({machine.name})")
    print(ROW.format("option", "ms a step", "samples/s", "speed"), ROW.format(*["---"] * 4), sep="\n")
    faster = []
    for row in compare_options(params, prepared, machine):
        print(ROW.format(*row.cells(params.train.batch_size)), flush=True)
        if row.speed and row.speed.least > 1.0:
            faster.append(f"{row.name} ({row.speed.median:.2f} times as fast)")
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


def compare_options(params: TrainParams, prepared: Prepared, machine: Machine) -> Iterator[OptionSpeed]:
    """Yield a row for the training as configured, and then one for each option, as soon as it is measured."""
    with begun({}, params, prepared, machine) as (configured, run_configured):
        yield OptionSpeed(CONFIGURED, statistics.median(run_configured() for _ in range(ROUNDS)))
        for key, value in options(params, prepared, machine, channels_last=configured.state.model.channels_last):
            name = f"{key}: {str(value).lower()}"
            try:
                with begun({key: value}, params, prepared, machine) as (trial, run):
                    seconds = interleaved({CONFIGURED: run_configured, name: run}, ROUNDS)
            except Refusal as refusal:
                yield OptionSpeed(name, obstacle=str(replace(refusal.problems[0], file="")))
            except Exception as error:  # an option that torch cannot do here must not end the comparison
                yield OptionSpeed(name, obstacle=f"{type(error).__name__}: {reason(error)}")
            else:
                if trial.progress.micro_batch_changes:
                    yield OptionSpeed(name, obstacle="out of memory")
                else:
                    yield OptionSpeed(name, statistics.median(seconds[name]), ratios(seconds[CONFIGURED], seconds[name]))


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

        def run(count: int) -> float:
            set_determinism(trial.params.train.deterministic, training=True)  # a setting of the whole process
            return time_block(step, count, machine.device)

        set_determinism(trial.params.train.deterministic, training=True)
        yield trial, partial(run, begin_block(step, machine.device, BLOCK_S))
