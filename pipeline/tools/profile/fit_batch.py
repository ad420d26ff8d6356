"""Finds the fastest micro-batch size that fits in memory.

A child process measures, so that only this process is killed if memory runs out.
"""

import io
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from pipeline.core.environment import Environment, Paths
from pipeline.core.params import load
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.yaml_document import Document
from pipeline.inference.torch_errors import OutOfMemory
from pipeline.tools.profile import trial as trials
from pipeline.tools.profile.speedup import GPU_MEMORY, Row, table
from pipeline.tools.profile.trial import Trial
from pipeline.train.engine.fit import Report
from pipeline.train.params import LoopSettings, TrainParams

WARMUP_STEPS, BLOCK_S, ROUNDS = 2, 0.4, 5
POLL_S, LIMIT_S = 0.02, 1800.0
BUDGET_SHARE = 0.9
"""The share of the machine's available memory that the measuring process may use."""
START_PARTS = 16
"""The search begins with a size that divides a lane into about this many micro-batches. Smaller sizes are slow, so they are tried only if that
size does not fit."""
NOISE = 1.03
"""A size counts as equally fast if its steps take at most this multiple of the time of the fastest steps."""
OVERFLOW = "out of memory"
TOO_LARGE = "train.micro_batch_size: one sample does not fit in memory: choose a smaller model or sample"


class Training(NamedTuple):
    """The training that the measuring process has built. `title` names model, device and precision; `notes` are sentences for the user."""

    title: str
    on_gpu: bool
    notes: tuple[str, ...]


Answer = tuple[Row, float]
"""The measurement of a size, and the share of the time in which the measuring process has waited for a CPU."""


@dataclass
class Search:
    """A search for the micro-batch size. `sizes` are the sizes to try, in ascending order, from the one at index `start` on.

    `rows` has the measurements by size, with the speed relative to that of `reference`, the first size that was measured. `training` is
    known once a size was tried.
    """

    sizes: Sequence[int]
    start: int
    budget_bytes: int
    rows: dict[int, Row] = field(default_factory=dict)
    reference: int | None = None
    training: Training | None = None
    waiting: float = 0.0

    def run(self) -> Iterator[Row]:
        """Measure larger sizes until one does not fit. If none does, measure smaller ones until one fits. Yield each row as it is known.

        A size that is impossible for another reason, such as BatchNorm over one sample, is left out. Raises Refusal if no size is left.
        """
        queue = list(self.sizes[self.start :])
        while queue:
            for row in self.measured(list(queue)):
                size = queue.pop(0)
                self.rows[size] = row
                if row.speed and self.reference is None:
                    self.reference = size
                yield row
            if row.obstacle == OVERFLOW:  # larger sizes do not fit either
                queue = [] if self.reference else [each for each in self.sizes if each < min(self.rows)][-1:]
        if self.reference is None:
            reasons = [row.obstacle for row in self.rows.values() if row.obstacle and row.obstacle != OVERFLOW]
            raise Refusal(reasons[0] if reasons else TOO_LARGE)

    def measured(self, sizes: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of `sizes` from a new process, up to the first size with an obstacle. Raises Refusal like the training."""
        with process(self.reference or sizes[0], sizes) as (child, connection):
            training = self.received(child, connection)
            if isinstance(training, str):
                raise Refusal(TOO_LARGE if training == OVERFLOW else training)
            self.training = training
            for size in sizes:
                answer = self.received(child, connection)
                if isinstance(answer, str):
                    yield Row(named(size), obstacle=answer)
                    return
                row, self.waiting = answer
                yield row

    def received(self, child: BaseProcess, connection: Connection) -> Any:
        """Return what the process sends next; a text is the reason why it cannot go on.

        The process is out of memory if it is killed, or if its resident memory exceeds `budget_bytes` and the device is no GPU. Raises Refusal
        if it dies otherwise, or sends nothing within LIMIT_S.
        """
        end_s = time.monotonic() + LIMIT_S
        try:
            while not connection.poll(POLL_S):
                if not (self.training and self.training.on_gpu) and resident_bytes(child) > self.budget_bytes:
                    return OVERFLOW
                if time.monotonic() > end_s:
                    raise Refusal(f"--fit-batch: a measurement took longer than {LIMIT_S:.0f} s: use a smaller train.batch_size")
            return connection.recv()
        except (EOFError, OSError):
            child.join()
            if child.exitcode == -signal.SIGKILL:  # the OOM killer
                return OVERFLOW
            raise Refusal(f"--fit-batch: the measuring process ended with exit code {child.exitcode}: its error is above") from None


@contextmanager
def process(reference: int, sizes: Sequence[int]) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a child process that measures `sizes`, and kill it at the end of the block."""
    context = get_context("spawn")
    connection, child_end = context.Pipe()
    child = context.Process(target=serve, args=(child_end, reference, sizes), daemon=True)
    child.start()
    child_end.close()
    try:
        yield child, connection
    finally:
        child.kill()
        child.join()
        connection.close()


def resident_bytes(child: BaseProcess) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(child.pid).memory_info().rss)
    return 0


def serve(connection: Connection, reference: int, sizes: Sequence[int]) -> None:
    """Send a description of the training, and then an Answer for each size, or a reason. This is the entry point of the measuring process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C also reaches the parent process, which kills this one
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # the OOM killer takes this process first
    with suppress(ConnectionError):
        try:
            params = load(Document.read(Paths().params), TrainParams)
            prepared, machine = trials.set_up(params, Paths(), Environment.read())
            machine = replace(machine, graphs="off")  # graphs of one size would take memory from the others
            trial = Trial.of(params, prepared, machine, changes={"report_every_steps": trials.NEVER})
            connection.send(Training(trial.title, trial.machine.device.type == "cuda", tuple(notes(trial.state.model.network))))
            with trials.stepping(trial) as reports, redirect_stdout(io.StringIO()):  # it prints that it makes micro-batches smaller
                for answer in answers(trial, reports, reference, sizes):
                    connection.send(answer)
        except OutOfMemory:
            connection.send(OVERFLOW)
        except Refusal as refusal:
            connection.send(str(refusal.problems[0]))


def answers(trial: Trial, reports: Iterator[Report], reference: int, sizes: Sequence[int]) -> Iterator[Answer]:
    """Measure blocks of steps of each size, which alternate with blocks of `reference`. Raises Refusal if a step needs too much memory."""

    def step(size: int) -> None:
        trial.progress.micro_batch_size = size
        next(reports)
        if trial.progress.micro_batch_size != size:  # the training has made the micro-batches smaller
            raise OutOfMemory("train.micro_batch_size: out of memory")

    device = trial.machine.device
    synchronize = partial(trials.synchronize, device)
    steps: dict[str, tuple[trials.Step, int]] = {}
    start_s, start_wait_s = time.perf_counter(), trials.cpu_wait_s()
    for size in (reference, *(size for size in sizes if size != reference)):
        make = partial(step, size)
        trials.reset_peak(device)
        step_s = trials.time_block(make, WARMUP_STEPS, synchronize)
        steps[named(size)] = (make, trials.steps_for(BLOCK_S, step_s))
        if size in sizes:
            both = {name: steps[name] for name in (named(reference), named(size))}
            seconds = trials.interleaved(both, rounds=ROUNDS, synchronize=synchronize)
            own = seconds[named(size)]
            row = Row(named(size), trials.spread(own).median, trials.ratios(seconds[named(reference)], own), trials.peak_bytes(device))
            yield row, (trials.cpu_wait_s() - start_wait_s) / (time.perf_counter() - start_s)


def named(size: int) -> str:
    return f"micro_batch_size: {size}"


def notes(network: nn.Module) -> Iterator[str]:
    """Yield a sentence about each kind of layer that makes the result of a training depend on the micro-batch size."""
    modules = dict(network.named_modules())
    norms = [name for name, module in modules.items() if isinstance(module, _BatchNorm) and module.training]
    dropouts = [name for name, module in modules.items() if draws(module)]
    if norms:
        yield (
            f"BatchNorm ({named_layers(norms)}) uses the mean and variance of each micro-batch, not of the batch: another micro_batch_size gives "
            "another model, and few samples give noisy statistics."
        )
    if dropouts:
        yield f"Dropout ({named_layers(dropouts)}) draws for each micro-batch: another micro_batch_size gives other random numbers."
    if not norms and not dropouts:
        yield "The model has no BatchNorm and no dropout: micro_batch_size changes its result by rounding only."


def draws(module: nn.Module) -> bool:
    """Return True if a layer draws random numbers for dropout. Layers other than torch's dropout, such as LSTM, have an attribute `dropout`."""
    chance = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0)
    return isinstance(chance, float) and chance > 0


def named_layers(layers: Sequence[str]) -> str:
    return listed([name or "the network" for name in layers], most=6)


def sizes_to_try(lane_size: int, present: int) -> list[int]:
    """Return `present` and divisors of the lane in ascending order: each divisor is the largest that is at most half of the next one."""
    sizes = [lane_size]
    for number in range(lane_size // 2, 0, -1):
        if lane_size % number == 0 and number <= sizes[-1] / 2:
            sizes.append(number)
    return sorted({*sizes, present})


def lines(settings: LoopSettings) -> Iterator[str]:
    """Measure micro-batch sizes for the training of this checkout. Yield what the user sees, each line as soon as it is known.

    The sizes divide the batch, so that all micro-batches are equal. Raises Refusal if no size is possible, if `train.compile` is `graphs`, or
    if the training itself would raise it.
    """
    if settings.compile == "graphs":
        raise Refusal("train.compile: `graphs` needs micro_batch_size equal to batch_size: write `train.compile: default` to compare sizes")
    batch_size, lane_size = settings.batch_size, settings.batch_size // settings.lanes
    present = min(settings.micro_batch_size, lane_size)
    sizes = sizes_to_try(lane_size, present)
    start = sizes.index(min(present, max(size for size in sizes if size <= max(1, lane_size // START_PARTS))))
    search = Search(sizes, start, int(BUDGET_SHARE * trials.available_bytes()))
    rows = search.run()
    first = next(rows)
    assert search.training
    on_gpu = search.training.on_gpu
    limit = "the memory of the GPU" if on_gpu else f"{search.budget_bytes / 1e6:,.0f} MB of this machine's memory"
    yield f"{search.training.title}: steps of {counted(batch_size, 'sample')}, within {limit}"
    yield from table(GPU_MEMORY if on_gpu else "resident, MB", chain([first], rows), batch_size)
    yield ""
    if warning := trials.note(search.waiting):
        yield warning
    yield from search.training.notes
    yield from conclusion(search.rows, lane_size, present)


def conclusion(rows: Mapping[int, Row], lane_size: int, present: int) -> Iterator[str]:
    """Yield the proposed change and the command that makes it, or a line that says that the configured size stays."""
    speeds = {size: row.speed.median for size, row in rows.items() if row.speed}
    proposed = smallest_of_fastest(speeds, lane_size, present)
    if proposed == present:
        yield f"train.micro_batch_size: {present} stays: no smaller size is as fast, and no larger one is faster."
        return
    if present in speeds:
        ratio = speeds[proposed] / speeds[present]
        saved = ((rows[present].peak_bytes or 0) - (rows[proposed].peak_bytes or 0)) / 1e6
        reason = f": {ratio:.2f} times as fast" + ("" if ratio > NOISE else f", which is within the noise, and {saved:,.0f} MB less memory")
    else:
        reason = ", which does not fit"
    yield f"{proposed} instead of {present}{reason}. The batch stays as it is."
    yield f"python -m pipeline set train.micro_batch_size={proposed}"


def smallest_of_fastest(speeds: Mapping[int, float], lane_size: int, present: int) -> int:
    """Return the smallest size that divides the lane and is as fast as the fastest, given the speed of each size; `present` if none is.

    One size is as fast as another if its steps take at most NOISE times as long.
    """
    fastest = max(speeds.values())
    return min((size for size, speed in speeds.items() if speed * NOISE >= fastest and lane_size % size == 0), default=present)
