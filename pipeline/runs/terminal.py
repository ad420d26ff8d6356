"""The lines that a training prints: the size of its model, a status line at the bottom of a terminal, rewritten in place, and lines that stay above it."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
import psutil
import torch
from torch import nn

from pipeline.core import limits
from pipeline.core.refusal import rounded
from pipeline.inference import networks
from pipeline.inference.batch import without_padding
from pipeline.inference.networks import Model

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.core.spec import Spec
    from pipeline.train.params import LoopSettings, TrainParams
    from pipeline.train.training import Training

ERASE_BELOW = "\r\x1b[J"


class LiveLine:
    """The status line. Between two writes, the cursor is visible and at the first column of the line.

    Therefore a killed process leaves a usable terminal. If the terminal becomes narrower and wraps the line, the cursor stays at the line's
    beginning, so that the next write erases the whole line.
    """

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.fields: Sequence[str] = ()
        self.is_visible = False

    def show(self, fields: Sequence[str]) -> None:
        """Show as many of `fields` as fit in one line of the terminal. The most important field is first."""
        self.fields = fields
        self.render()

    def render(self) -> None:
        """Write the line, without the fields that do not fit."""
        from rich.text import Text  # late, like all imports of rich, which is needed only on a terminal

        fields = list(self.fields)
        while len(fields) > 1 and Text(", ".join(fields)).cell_len >= self.console.width:
            fields.pop()
        text = Text(", ".join(fields), style="dim", no_wrap=True, overflow="ellipsis")
        text.truncate(self.console.width - 1)  # in the last column, some terminals would already wrap
        with self.console.capture() as rendered:
            self.console.print(text, end="\r")
        self.console.file.write(ERASE_BELOW + rendered.get())
        self.console.file.flush()
        self.is_visible = True

    def erase(self) -> None:
        """Erase the line if it is visible. Its fields are kept."""
        if self.is_visible:
            self.console.file.write(ERASE_BELOW)
            self.console.file.flush()
            self.is_visible = False


class Above:
    """A text stream that erases the status line before it writes to `stream`.

    If `stream` is a terminal, the status line is written again as soon as a text ends in a line feed. If `stream` is a pipe, such as that of
    `| tee log`, the reader of the pipe may print the text on the same terminal a little later, so the status line stays erased until `show`.
    """

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self.stream, self.line, self.restores = stream, line, stream.isatty()

    def write(self, text: str) -> int:
        self.line.erase()
        count = self.stream.write(text)
        self.stream.flush()
        if self.restores and text.endswith("\n") and self.line.fields:
            self.line.render()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def live_line(stdout: TextIO, stderr: TextIO) -> Iterator[LiveLine]:
    """Provide a status line on the terminal `stderr` within the block, and erase it at the end. It is empty before the first `show`.

    Text that is written to `sys.stdout` and `sys.stderr` appears above it. `stdout` may be a file or a pipe.
    """
    from rich.console import Console

    line = LiveLine(Console(file=stderr, highlight=False))
    with ExitStack() as redirected:
        redirected.callback(line.erase)
        redirected.enter_context(redirect_stderr(Above(stderr, line)))
        redirected.enter_context(redirect_stdout(Above(stdout, line)))
        yield line


LIVE_EVERY_S, LINE_EVERY_S = 0.5, 10.0
RATE_OVER_S = 30.0
"""The number of seconds over which samples per second are measured."""
LOSS = "train/objective"


@dataclass
class Throughput:
    """The speed of a training. `marks` are pairs of a time in seconds and the step that was completed at this time."""

    marks: deque[tuple[float, int]] = field(default_factory=deque)
    start: tuple[float, int] | None = None

    def mark(self, now_s: float, step: int) -> None:
        """Record that `step` was completed. The first mark is the start: the first step of a process is slower than the others."""
        self.start = self.start or (now_s, step)
        self.marks.append((now_s, step))
        while len(self.marks) > 2 and self.marks[1][0] <= now_s - RATE_OVER_S:
            self.marks.popleft()

    def steps_per_second(self) -> float | None:
        """Return the rate of the last RATE_OVER_S seconds, with validations; None before the second step."""
        return rate(self.marks[0], self.marks[-1]) if self.marks else None

    def seconds_left(self, num_steps: int) -> float | None:
        """Return the time until `num_steps`, at the mean rate since the start; None before the second step."""
        mean = rate(self.start, self.marks[-1]) if self.start else None
        return (num_steps - self.marks[-1][1]) / mean if mean else None


def rate(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    seconds, steps = last[0] - first[0], last[1] - first[1]
    return steps / seconds if seconds > 0 and steps > 0 else None


@dataclass
class TrainingLines:
    """Prints the progress of a training, from numbers that are already on the host. `num_samples` is the size of the train split.

    Calls `show` with the fields of a progress line if nothing was shown for `every_s` seconds and, if `is_live` is True, after each
    validation. A line for each validation is printed, and stays. With `others`, a line says once that other processes use the CPUs.
    """

    settings: "LoopSettings"
    num_samples: int
    device: torch.device
    show: Callable[[Sequence[str]], None] = lambda _: None
    every_s: float = math.inf
    is_live: bool = False
    others: limits.OtherProcesses | None = None
    throughput: Throughput = field(default_factory=Throughput)
    done: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_steps, self.last_s = self.settings.num_steps(self.num_samples), time.monotonic()

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count a completed step, with its metrics if it has any. Print the metrics of a validation.

        This is called after every step, so it does nothing else for a step without metrics unless a line is due.
        """
        self.done = step
        now_s = time.monotonic()
        if self.throughput.start is None:
            self.throughput.mark(now_s, step)
        if metrics:
            self.metrics.update(metrics)
            if validated := [name for name in metrics if name.startswith("valid/")]:
                names = [name for name in (LOSS, *validated) if name in metrics]
                shown = ", ".join(f"{name} {rounded(metrics[name])}" for name in names)
                print(f"train: step {step} of {self.num_steps}, {self.epoch()}: {shown}", flush=True)
                self.last_s = -math.inf if self.is_live else now_s
        if now_s - self.last_s >= self.every_s:
            self.throughput.mark(now_s, step)
            self.progress(now_s)

    def validating(self) -> None:
        """Show that a validation runs if a line is due. This is called after each batch of a validation."""
        now_s = time.monotonic()
        if now_s - self.last_s >= self.every_s:
            self.progress(now_s, "validating")

    def progress(self, now_s: float, *more: str) -> None:
        self.last_s = now_s
        if self.others and now_s - self.others.begin_s >= LINE_EVERY_S:
            threads = torch.get_num_threads()
            if free := self.others.free_cpus(threads):
                print(
                    f"train: other processes use the CPUs, and each of {threads} threads waits for the slowest: with PIPELINE_THREADS={free} "
                    "a training is faster, but it has other bits and begins anew",
                    flush=True,
                )
            self.others = None
        self.show([f"train: step {self.done} of {self.num_steps}", *more, *self.fields()])

    def epoch(self) -> str:
        """Return the number of epochs that are done as text, such as `epoch 3.2`."""
        return f"epoch {self.done * self.settings.batch_size / self.num_samples:.1f}"

    def fields(self) -> Iterator[str]:
        """Yield the fields of the line after the step, the most important first."""
        yield self.epoch()
        left_s, steps_per_second = self.throughput.seconds_left(self.num_steps), self.throughput.steps_per_second()
        if left_s is not None:
            yield f"{'' if self.settings.patience is None else 'at most '}{duration(left_s)} left"
        for label, name in (("loss", LOSS), (self.settings.metric, self.settings.metric)):
            if name in self.metrics:
                yield f"{label} {rounded(self.metrics[name])}"
        if steps_per_second:
            yield f"{quantity(steps_per_second * self.settings.batch_size)} samples/s"
        yield memory(self.device)


def duration(seconds: float) -> str:
    """Return a time in at most two units, such as `1 h 20 min`."""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_min = divmod(minutes, 60)
    days, rest_h = divmod(hours, 24)
    if days:
        return f"{days} d {rest_h} h"
    if hours:
        return f"{hours} h {rest_min} min"
    return f"{minutes} min {rest_s} s" if 0 < minutes < 10 else f"{minutes} min" if minutes else f"{rest_s} s"


def quantity(value: float) -> str:
    """Return a number with about three digits, such as 12,300 or 0.52."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def memory(device: torch.device) -> str:
    """Return the resident memory of this process, or the memory that it has reserved on its GPU, as text. No synchronisation is needed."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return f"GPU memory {torch.cuda.memory_reserved(device) / 1e9:.1f} of {total / 1e9:.0f} GB"
    return f"memory {psutil.Process().memory_info().rss / 1e9:.2f} GB"


@contextmanager
def training_lines(
    settings: "LoopSettings", num_samples: int, device: torch.device, *, is_first: bool, num_processes: int = 1
) -> Iterator[TrainingLines]:
    """Print the lines of a training within the block: a status line if stderr is a terminal, else a line if LINE_EVERY_S had none.

    If the environment variable CI is set, or in a process that is not the first of several, only validations are printed. On a CPU, the load
    by other processes is measured, unless the training has several processes itself.
    """
    others = limits.OtherProcesses() if device.type == "cpu" and num_processes == 1 else None
    lines = partial(TrainingLines, settings, num_samples, device, others=others)
    if not is_first or os.environ.get("CI"):
        yield lines()
    elif sys.stderr.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown"):
        stdout = sys.stdout
        with live_line(stdout, sys.stderr) as line:
            yield lines(line.show, every_s=LIVE_EVERY_S, is_live=stdout.isatty())
    else:
        yield lines(lambda fields: print(", ".join(fields), flush=True), every_s=LINE_EVERY_S)


SAMPLES_COUNTED = 2
"""BatchNorm needs two samples. What is counted is divided by this number."""


class Forward(NamedTuple):
    """The forward pass of one sample: its FLOPs, and the numbers that all layers output. `num_weights` is the number of parameters."""

    flops: float
    num_outputs: float
    num_weights: int


def count_forward(params: "TrainParams", spec: "Spec", longest: int | None = None) -> Forward | None:
    """Count the forward pass of a sample, of a text with the length to which a batch with the `longest` is cut (None: the full length).

    Nothing is computed: the network is on torch's meta device. Return None if the network cannot run on the meta device, for example because
    it needs pretrained weights or values of tensors.
    """
    from torch.utils.flop_counter import FlopCounterMode  # late: it imports Triton

    num_outputs = 0

    def add(module: nn.Module, _: object, output: object) -> None:
        nonlocal num_outputs
        if isinstance(output, torch.Tensor) and not any(module.children()):
            num_outputs += output.numel()

    try:
        with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter, torch.no_grad():
            network = networks.build_on_meta(params.model, spec)
            if network is None:
                return None
            params.model.add_updates(network, frozenset())
            for module in network.modules():
                module.register_forward_hook(add)
            model = Model(network, networks.preprocessing(spec.inputs, channels_last=False).to("meta")).train()
            inputs = torch.empty(
                (SAMPLES_COUNTED, *spec.inputs.row_shape), dtype=getattr(torch, np.dtype(spec.inputs.dtype).name), device="meta"
            )
            model(without_padding(inputs, None if longest is None else torch.tensor([longest])))
    except Exception:  # whatever a model of one's own raises: if a training raises it too, that reports it with place and remedy
        return None
    num_weights = sum(parameter.numel() for parameter in network.parameters())
    return Forward(counter.get_total_flops() / SAMPLES_COUNTED, num_outputs / SAMPLES_COUNTED, num_weights)


def described_size(training: "Training") -> str:
    """Return how large the model of a training is, such as `680,710 parameters, 21 MFLOPs for a sample (forward)`."""
    parameters, lengths = training.state.parameters, training.prepared.train.lengths
    num_parameters, num_trained = (sum(each.numel() for each in parameters if each.requires_grad or frozen) for frozen in (True, False))
    trained = f" ({num_trained:,} trained)" if num_trained < num_parameters else ""
    forward = count_forward(training.params, training.prepared.spec, None if lengths is None else int(lengths.max()))
    flops = f", {si(forward.flops)}FLOPs for a sample (forward)" if forward else ""
    return f"{num_parameters:,} parameters{trained}{flops}"


def si(value: float) -> str:
    """Return a number with an SI prefix and a space, such as `1.2 M`."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{quantity(value)} T"
