"""Finds the fastest micro-batch size that fits in memory."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial

from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal, counted
from pipeline.inference.machine import Machine
from pipeline.inference.torch_errors import OutOfMemory
from pipeline.tools.profile import trial as trials
from pipeline.tools.profile.speedup import GPU_MEMORY, Row, obstacle_of, table
from pipeline.tools.profile.trial import Trial
from pipeline.train.engine.fit import Report
from pipeline.train.params import TrainParams

WARMUP_STEPS, BLOCK_S, ROUNDS = 2, 0.4, 5
START_PARTS = 16
"""The search begins with a size that divides a lane into about this many micro-batches. Smaller sizes are slow, so they are tried only if that
size does not fit."""
NOISE = 1.03
"""A size counts as equally fast if its steps take at most this multiple of the time of the fastest steps."""
OVERFLOW = "out of memory"
REMARK = (
    "BatchNorm takes mean and variance of each micro-batch, and dropout draws for each: with such layers, another micro_batch_size gives "
    "another model; else it changes the result by rounding only."
)
TOO_LARGE = "train.micro_batch_size: one sample does not fit in memory: choose a smaller model or sample"


@dataclass
class Search:
    """A search for the micro-batch size. `sizes` are the sizes to try, in ascending order, from the one at index `start` on.

    `rows` has the measurements by size, with the speed relative to that of `reference`, the first size that was measured.
    """

    params: TrainParams
    prepared: Prepared
    machine: Machine
    sizes: Sequence[int]
    start: int
    rows: dict[int, Row] = field(default_factory=dict)
    reference: int | None = None

    def run(self) -> Iterator[Row]:
        """Measure larger sizes until one does not fit. If none does, measure smaller ones until one fits. Yield each row as it is known.

        A size that is impossible for another reason, such as BatchNorm over one sample, is left out. Raises Refusal if no size is left.
        """
        row = None
        for size in self.sizes[self.start :]:
            yield (row := self.measured(size))
            if row.obstacle == OVERFLOW:  # larger sizes do not fit either
                break
        for size in reversed(self.sizes[: self.start]):
            if self.reference or not row or row.obstacle != OVERFLOW:
                break
            yield (row := self.measured(size))
        if self.reference is None:
            reasons = [row.obstacle for row in self.rows.values() if row.obstacle and row.obstacle != OVERFLOW]
            raise Refusal(reasons[0] if reasons else TOO_LARGE)

    def measured(self, size: int) -> Row:
        """Return the row of a size, which is measured in a new trial."""
        trial = begun(self.params, self.prepared, self.machine)
        try:
            with trials.stepping(trial) as reports:
                row = measure(trial, reports, size, reference=self.reference or size)
                self.reference = self.reference or size
        except (OutOfMemory, MemoryError):
            row = Row(named(size), obstacle=OVERFLOW)
        except Exception as error:  # a size that torch cannot do must not end the search
            row = Row(named(size), obstacle=obstacle_of(error))
        self.rows[size] = row
        return row


def begun(params: TrainParams, prepared: Prepared, machine: Machine) -> Trial:
    """Return a trial without CUDA graphs: those of one size would take memory from the others."""
    return Trial.of(params, prepared, replace(machine, graphs="off"), changes={"report_every_steps": trials.NEVER})


def measure(trial: Trial, reports: Iterator[Report], size: int, *, reference: int) -> Row:
    """Measure blocks of steps of a size, which alternate with blocks of `reference`. Raises Refusal if a step needs too much memory."""

    def step(size: int) -> None:
        trial.progress.micro_batch_size = size
        with redirect_stdout(io.StringIO()):  # the training prints that it makes the micro-batches smaller
            next(reports)
        if trial.progress.micro_batch_size != size:
            raise OutOfMemory("train.micro_batch_size: out of memory")

    device = trial.machine.device
    synchronize = partial(trials.synchronize, device)
    steps: dict[int, tuple[trials.Step, int]] = {}
    for each in (reference, size):
        make = partial(step, each)
        trials.reset_peak(device)
        steps[each] = (make, trials.steps_for(BLOCK_S, trials.time_block(make, WARMUP_STEPS, synchronize)))
    seconds = trials.interleaved(steps, rounds=ROUNDS, synchronize=synchronize)
    speed = trials.ratios(seconds[reference], seconds[size])
    return Row(named(size), trials.spread(seconds[size]).median, speed, trials.peak_bytes(device))


def named(size: int) -> str:
    return f"micro_batch_size: {size}"


def sizes_to_try(lane_size: int, present: int) -> list[int]:
    """Return `present` and divisors of the lane in ascending order: each divisor is the largest that is at most half of the next one."""
    sizes = [lane_size]
    for number in range(lane_size // 2, 0, -1):
        if lane_size % number == 0 and number <= sizes[-1] / 2:
            sizes.append(number)
    return sorted({*sizes, present})


def lines(params: TrainParams, prepared: Prepared, machine: Machine) -> Iterator[str]:
    """Measure micro-batch sizes for the training of this checkout. Yield what the user sees, each line as soon as it is known.

    The sizes divide the batch, so that all micro-batches are equal. Raises Refusal if no size is possible, if `train.compile` is `graphs`, or
    if the training itself would raise it.
    """
    settings = params.train
    if settings.compile == "graphs":
        raise Refusal("train.compile: `graphs` needs micro_batch_size equal to batch_size: write `train.compile: default` to compare sizes")
    lane_size = settings.batch_size // settings.lanes
    present = min(settings.micro_batch_size, lane_size)
    sizes = sizes_to_try(lane_size, present)
    start = sizes.index(min(present, max(size for size in sizes if size <= max(1, lane_size // START_PARTS))))
    title = begun(params, prepared, machine).title
    on_gpu, crowding = machine.device.type == "cuda", trials.watch()
    search = Search(params, prepared, machine, sizes, start)
    yield f"{title}: steps of {counted(settings.batch_size, 'sample')}"
    yield from table(GPU_MEMORY if on_gpu else "resident, MB", search.run(), settings.batch_size)
    yield ""
    if warning := crowding():
        yield warning
    yield REMARK
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
