"""`profile`: says what limits the speed of a training: waiting for data, launches of operations by the host, or computing; or what would make it faster.

The time of a step is measured without the profiler, which would make the step longer. How it is divided, the heaviest operations and the trace
come from a few more steps under PyTorch's profiler. With `--speedup`, the training as configured is compared with each option that could make
it faster: blocks of steps with an option alternate with blocks as configured, so that a drift of the machine's speed affects both alike.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.core.environment import Environment, Paths
from pipeline.core.params import adding_lines, load
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import reason
from pipeline.core.yaml_document import Document
from pipeline.inference.machine import Machine, set_determinism
from pipeline.tools.profile.trial import NEVER, WAITING, Trial, begin_block, interleaved, ratios, stepping, synchronize, time_block
from pipeline.train.params import TrainParams

BLOCKS, BLOCK_S = 5, 0.6
MOST_TRACED, MOST_OPERATIONS = 10, 10
STEP = "step"
COMPILED = "## Call CompiledFxGraph"
"""The names of events that contain compiled kernels begin with this text. On a CPU, such kernels have no events of their own."""
VERDICTS = {
    "waiting for data": "make samples smaller, augment them less, use more threads, or free memory, so that the train split is held on the device",
    "launches": "the device waits for Python: try `train.compile`, larger micro-batches or batches, or fewer reports; the trace shows which code it is",
    "computing": "as it should: `python -m pipeline profile --speedup` measures what would help here; else use a faster device or a smaller model",
}
"""The parts of a step, each with the remedy for the case that it is the largest."""


def run(*, trace: str | None, speedup: bool) -> None:
    """Print how a step's time is divided, a remedy and the heaviest operations, and write the profiled steps to the file `trace`, if given.

    With `speedup`, instead print a table of the training as configured and of each option. Raises Refusal if the parameters, the data or the
    options are invalid.
    """
    if trace and (speedup or Path(trace).is_dir()):
        raise Refusal(f"--trace: {trace}: should be the name of a file, such as trace.json.gz, and stands without --speedup")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes to stderr
    paths, environment = Paths(), Environment.read()
    document = Document.read(paths.params)
    params = load(document, TrainParams)
    if environment.processes != 1:
        print("note: PIPELINE_PROCESSES: one process with the whole batch is measured", file=sys.stderr)
    with adding_lines(document):
        machine = Machine.set_up(environment.model_copy(update={"local_world_size": 1}))
        set_determinism(params.train.deterministic, training=True)
        prepared = Prepared.open(paths.prepared)
        if speedup:
            print_comparison(params, prepared, machine)
        else:
            print_profile(params, prepared, machine, trace)


def print_profile(params: TrainParams, prepared: Prepared, machine: Machine, trace: str | None) -> None:
    """Profile a training, and print how a step is divided, and PyTorch's table of the operations that take the most time, all profiled steps
    together. Write these steps to the file `trace`, if given, which Chrome and Perfetto read, compressed if its name ends in `.gz`.
    """
    trial, settings = Trial.of(params, prepared, machine), params.train
    on_gpu = machine.device.type == "cuda"
    with stepping(trial) as reports:
        step = partial(next, reports)
        count = begin_block(step, machine.device, BLOCK_S)
        step_s = statistics.median(time_block(step, count, machine.device) for _ in range(BLOCKS))
        num_traced = min(count, MOST_TRACED)
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
            for _ in range(num_traced):
                with record_function(STEP):
                    step()
            synchronize(machine.device)
    parts = f" in micro-batches of {settings.micro_batch_size}" if settings.micro_batch_size < settings.batch_size else ""
    speed = f"{1000 * step_s:.2f} ms a step, {settings.batch_size / step_s:,.0f} samples a second"
    print(f"{trial.title}, {counted(settings.batch_size, 'sample')}{parts}: {speed}\n")
    divided = shares(profiler.events() or (), num_traced, step_s, on_gpu=on_gpu)
    for name, value in divided.items():
        print(f"  {name:22} {value:6.1%} {1000 * value * step_s:8.2f} ms")
    largest = max(divided, key=divided.__getitem__)
    print(f"\nMost of the time goes into {largest} ({divided[largest]:.0%}): {VERDICTS[largest]}.\n")
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=by, row_limit=MOST_OPERATIONS, max_name_column_width=40).rstrip())
    if trace:
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(trace)
        print(f"trace: {trace}: open it at https://ui.perfetto.dev")


def shares(events: Sequence[Any], num_steps: int, step_s: float, *, on_gpu: bool) -> dict[str, float]:
    """Divide a step, which takes `step_s` seconds without the profiler, by the keys of VERDICTS; the sum is 1. `events` are those of PyTorch's
    profiler for `num_steps` steps.

    A GPU computes in its kernels; those that run at the same time are counted twice. They are no slower under the profiler. A GPU that does not
    compute waits for data while it receives some and as long as the host does, and for launches in the remaining time. A CPU computes in
    operations of a step outside of its wait for data, and the parts are the same fractions of a step as under the profiler.
    """
    on_host = [event for event in events if event.device_type.name == "CPU"]
    on_device = [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]

    def seconds(found: Iterable[Any]) -> float:
        return float(sum(event.time_range.elapsed_us() for event in found)) / 1e6 / num_steps

    waiting_s, traced_s = (seconds(event for event in on_host if event.name == name) for name in (WAITING, STEP))
    if on_gpu:
        copying_s = seconds(event for event in on_device if "HtoD" in event.name)
        computing = min((seconds(on_device) - copying_s) / step_s, 1.0)
        waiting = min((waiting_s + copying_s) / step_s, 1.0 - computing)
    else:
        computing = sum(event.self_cpu_time_total for event in on_host if is_operation(event)) / 1e6 / num_steps / traced_s
        waiting = waiting_s / traced_s
    return dict(zip(VERDICTS, (waiting, 1.0 - waiting - computing, computing), strict=True))


def is_operation(event: Any) -> bool:
    """Return True if the event is an operation of PyTorch, such as `aten::mm`, and not Python code, in a step and outside of its wait for data."""
    if not (event.name.startswith(COMPILED) or "::" in event.name):
        return False
    while event and event.name not in (STEP, WAITING):
        event = event.cpu_parent
    return bool(event) and event.name == STEP


CONFIGURED = "as configured"
ROUNDS, ROUND_S = 5, 0.5
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
        count = begin_block(step, machine.device, ROUND_S)

        def run() -> float:
            set_determinism(trial.params.train.deterministic, training=True)
            return time_block(step, count, machine.device)

        yield trial, run
