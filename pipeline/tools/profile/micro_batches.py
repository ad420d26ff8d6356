"""Measures micro-batch sizes in a child process, so that only this process is killed if memory runs out; and the memory of a training in bytes."""

import io
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from pipeline.core import limits
from pipeline.core.environment import Environment
from pipeline.core.paths import Paths
from pipeline.core.refusal import Refusal
from pipeline.tools.profile import timing
from pipeline.tools.profile.timing import interleaved
from pipeline.tools.profile.trial import NEVER, Trial, stepping, steps_for, synchronize
from pipeline.train.engine.fit import Report

RESET_PEAK = "5"
"""The text that resets the peak of the resident memory when it is written to `/proc/self/clear_refs` (man 5 proc)."""


def reset_peak(device: torch.device) -> None:
    """Reset the peak that `peak_bytes` returns. If the kernel cannot reset it on a CPU, it stays the peak since the start of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Return the peak since the last `reset_peak`: that of the tensors on the GPU, or of this process's resident memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available_bytes() -> int:
    """Return how much memory a new process can use: the free memory of the machine, or what the limit of a cgroup leaves, if that is less."""
    return min([psutil.virtual_memory().available, *map(left_bytes, limits.folders("memory"))])


def left_bytes(folder: Path) -> int:
    """Return how much memory a cgroup may still take, given its `folder`. Cached files count as free, because the kernel drops them first."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit_bytes, used_bytes = limits.read_or_empty(folder / limit).strip(), limits.read_or_empty(folder / used).strip()
        if limit_bytes.isdigit() and used_bytes.isdigit():
            statistics = dict(line.split() for line in limits.read_or_empty(folder / "memory.stat").splitlines())
            return int(limit_bytes) - int(used_bytes) + int(statistics.get(cached, 0))
    return sys.maxsize


WARMUP_STEPS, BLOCK_S, ROUNDS = 2, 0.4, 7
POLL_S = 0.02
LIMIT_S = 1800.0
OUT_OF_MEMORY = "train.micro_batch_size: out of memory"
"""The beginning of the Refusal of a training that is out of memory with the smallest micro-batch."""


class TrainingProperties(NamedTuple):
    """Properties of the training that is measured. `title` names model, device and precision; `device` is the type of the device."""

    title: str
    device: str
    norms: tuple[str, ...]
    """Names of the BatchNorm layers that compute statistics of each micro-batch."""
    dropouts: tuple[str, ...]
    """Names of the layers that draw random numbers for dropout."""


class Measured(NamedTuple):
    """The result of one micro-batch size.

    `peak_bytes` is the peak memory of a step: of the tensors on the GPU, or the resident memory of the process. `obstacle` is the reason if
    this size is impossible, but not for lack of memory; else None.
    """

    size: int
    step_s: float = 0.0
    peak_bytes: int = 0
    obstacle: str | None = None


class Overflow(Exception):
    """Raised if a size needs more memory than there is. The process has ended or must not be used again."""


class MeasuringProcess:
    """A child process that measures micro-batch sizes. Use it in a `with` block, which kills the process at its end."""

    def __init__(self, budget_bytes: int | None) -> None:
        """Start the process. It is killed when its resident memory exceeds `budget_bytes`; None for no limit."""
        context = get_context("spawn")
        self.budget_bytes = budget_bytes
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=serve, args=(child_end,), daemon=True)
        self.process.start()
        child_end.close()
        self.largest = 0
        """The largest size that this process has tried."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def properties(self) -> TrainingProperties:
        return TrainingProperties(*self.ask("properties"))

    def measured(self, size: int) -> Measured:
        """Measure one micro-batch size. Raises Overflow if it needs too much memory."""
        self.largest = max(self.largest, size)
        return Measured(*self.ask("trial", size))

    def blocks(self, counts: dict[int, int]) -> tuple[dict[int, list[float]], float]:
        """Run blocks of steps of several sizes in turn. `counts` are the steps of a block, by size.

        Return the seconds of a step in each block, by size, and the share of the time in which the process waited for a CPU.
        """
        seconds, waiting = self.ask("blocks", counts)
        return seconds, waiting

    def ask(self, question: str, argument: Any = None) -> Any:
        """Return the answer of the process to `question`, which is "properties", "trial" or "blocks", with its `argument`.

        Raises Overflow if memory runs out. Raises Refusal if the training does, if there is no answer within LIMIT_S, or if the process dies.
        """
        end_s = time.monotonic() + LIMIT_S
        try:
            self.connection.send((question, argument))
            while not self.connection.poll(POLL_S):
                if self.takes_too_much():
                    raise Overflow
                if time.monotonic() > end_s:
                    raise Refusal(f"fit-batch: a measurement took longer than {LIMIT_S:.0f} s: use a smaller train.batch_size")
            kind, answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            if self.process.exitcode == -signal.SIGKILL:  # the OOM killer
                raise Overflow from None
            raise Refusal(f"fit-batch: the measuring process ended with exit code {self.process.exitcode}: its error is above") from None
        if kind == "overflow":
            raise Overflow
        if kind == "refusal":
            raise Refusal(answer)
        return answer

    def takes_too_much(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return self.budget_bytes is not None and psutil.Process(self.process.pid).memory_info().rss > self.budget_bytes
        return False


def serve(connection: Connection) -> None:
    """Answer the questions of the parent process until it closes its end of the pipe. This is the entry point of the measuring process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C also reaches the parent process, which kills this one
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # the OOM killer takes this process first
    with suppress(EOFError, ConnectionError):
        try:
            answer(connection)
        except Refusal as refusal:
            connection.send(("overflow", None) if OUT_OF_MEMORY in str(refusal) else ("refusal", str(refusal)))


def answer(connection: Connection) -> None:
    """Begin the training of this checkout, and answer questions about it. Raises Refusal like the training, also if memory runs out."""
    with timing.ready(Paths(), Environment.read()) as (params, prepared, machine), ExitStack() as closing:
        trial = Trial.of(params, prepared, machine, changes={"report_every_steps": NEVER})
        reports = closing.enter_context(stepping(trial))
        while True:
            question, argument = connection.recv()
            if question == "properties":
                connection.send(("answer", tuple(properties_of(trial))))
            elif question == "trial":
                with redirect_stdout(io.StringIO()):  # the training prints that it makes its micro-batches smaller
                    connection.send(("answer", tuple(measure_size(trial, reports, argument))))
            else:
                connection.send(("answer", timed(trial, reports, argument)))


def properties_of(trial: Trial) -> TrainingProperties:
    modules = dict(trial.state.model.network.named_modules())
    norms = tuple(name for name, module in modules.items() if isinstance(module, _BatchNorm) and module.training)
    dropouts = tuple(name for name, module in modules.items() if draws(module))
    machine = trial.machine
    title = f"{trial.params.model.title} on {machine.device} ({machine.name}) in {trial.state.precision}"
    return TrainingProperties(title, machine.device.type, norms, dropouts)


def draws(module: nn.Module) -> bool:
    """Return True if a layer draws random numbers for dropout. Layers other than torch's dropout, such as LSTM, have an attribute `dropout`."""
    chance = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0)
    return isinstance(chance, float) and chance > 0


def measure_size(trial: Trial, reports: Iterator[Report], size: int) -> Measured:
    """Measure some steps with micro-batches of `size` samples. Raises Refusal if they need too much memory."""
    device = trial.machine.device
    trial.progress.micro_batch_size = size
    reset_peak(device)
    block = partial(interleaved, rounds=1, synchronize=partial(synchronize, device))
    step_s = block({"": (partial(next, reports), WARMUP_STEPS)})[""][0]
    step_s = block({"": (partial(next, reports), steps_for(BLOCK_S, step_s))})[""][0]
    if trial.progress.micro_batch_size != size:  # the training has made the micro-batches smaller
        raise Refusal(OUT_OF_MEMORY)
    return Measured(size, step_s, peak_bytes(device))


def timed(trial: Trial, reports: Iterator[Report], counts: dict[int, int]) -> tuple[dict[int, list[float]], float]:
    """Run blocks of steps of several micro-batch sizes in turn, and return what `MeasuringProcess.blocks` does."""

    def choose(name: str) -> None:
        trial.progress.micro_batch_size = int(name)

    steps = {str(size): (partial(next, reports), count) for size, count in counts.items()}
    start_s, start_wait_s = time.perf_counter(), timing.cpu_wait_s()
    seconds = interleaved(steps, rounds=ROUNDS, synchronize=partial(synchronize, trial.machine.device), before=choose)
    waiting = (timing.cpu_wait_s() - start_wait_s) / (time.perf_counter() - start_s)
    return {int(name): each for name, each in seconds.items()}, waiting
