"""Finds the fastest micro-batch size: first the sizes that fit in memory, by doubling and bisection, and then the fastest of these."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from pipeline.core.refusal import Refusal, counted
from pipeline.tools.profile import micro_batches, timing
from pipeline.tools.profile.micro_batches import BLOCK_S, Measured, MeasuringProcess, Overflow, TrainingProperties
from pipeline.tools.profile.trial import steps_for
from pipeline.train.params import LoopSettings

BUDGET_SHARE = 0.9
"""The share of the machine's available memory that the measuring process may use."""
START_PARTS = 16
"""The search begins with a size that divides a lane into about this many micro-batches. Smaller sizes are slow, so they are tried only if that
size does not fit."""
NOISE = 1.03
"""A size counts as equally fast if its steps take at most this multiple of the time of the fastest steps."""


@dataclass
class SizeSearch:
    """Measures micro-batch sizes in a child process, which is replaced when it runs out of memory.

    `budget_bytes` is the largest resident memory that the process may have; None if the memory of a GPU is the limit. `results` has the
    measurements by size, and `overflows` the sizes that do not fit.
    """

    budget_bytes: int | None
    results: dict[int, Measured] = field(default_factory=dict)
    overflows: list[int] = field(default_factory=list)
    closing: ExitStack = field(default_factory=ExitStack)
    process: MeasuringProcess | None = None

    def fits(self, size: int) -> bool:
        """Measure micro-batches of `size` samples, and return True if they fit in memory.

        A size that fails for another reason, such as BatchNorm over one sample, counts as fitting. Its result has the reason.
        """
        try:
            self.results[size] = self.process_for(size).measured(size)
        except Overflow:
            self.overflows.append(size)
            self.renew()
            return False
        except Refusal as refusal:
            self.results[size] = Measured(size, obstacle=str(refusal).splitlines()[0])
            self.renew()
        return True

    def compared(self) -> tuple[dict[int, list[float]], float]:
        """Run blocks of steps of all sizes that fit, in turn, and return what `MeasuringProcess.blocks` does.

        In one process they may take more memory than each alone. Then the largest size counts as one that does not fit, and the others are
        compared. Raises Refusal if no size is left.
        """
        while possible := sorted(size for size, result in self.results.items() if result.obstacle is None):
            self.renew()
            assert self.process
            try:
                return self.process.blocks({size: steps_for(BLOCK_S, self.results[size].step_s) for size in possible})
            except Overflow:
                self.overflows.append(possible[-1])
                del self.results[possible[-1]]
        reasons = [result.obstacle for result in self.results.values() if result.obstacle]
        raise Refusal(
            reasons[0] if reasons else "train.micro_batch_size: one sample does not fit in memory: choose a smaller model or sample"
        )

    def process_for(self, size: int) -> MeasuringProcess:
        """Return a process in which to measure `size`. It has tried no larger size, whose memory it might still hold."""
        if self.process is None or size < self.process.largest:
            self.renew()
        assert self.process
        return self.process

    def renew(self) -> None:
        """End the process, and start another one."""
        self.closing.close()
        self.process = self.closing.enter_context(MeasuringProcess(self.budget_bytes))


@dataclass(frozen=True)
class Result:
    """The result of the search: the sizes that fit, in ascending order (`measured`), and those that do not (`overflows`).

    `batch_size` and `lane_size` are numbers of samples in a step and in a lane. `present` is the configured `train.micro_batch_size`, and
    `proposed` the smallest of the fastest sizes that divide a lane. `seconds` has, by size, the seconds per step in each block.
    """

    properties: TrainingProperties
    batch_size: int
    lane_size: int
    present: int
    proposed: int
    measured: Sequence[Measured]
    seconds: dict[int, list[float]]
    overflows: Sequence[int]
    budget_bytes: int | None
    waiting: float
    """The share of the time in which the measuring process waited for a CPU."""

    def lines(self) -> Iterator[str]:
        """Yield the lines that the user sees."""
        limit = "the memory of the GPU" if self.budget_bytes is None else f"{self.budget_bytes / 1e6:,.0f} MB of this machine's memory"
        yield f"{self.properties.title}: steps of {counted(self.batch_size, 'sample')}, within {limit}"
        kind = "allocated, MB" if self.properties.device == "cuda" else "resident, MB"
        yield f"| micro-batch | number     | ms a step | samples/s (min. to max.)       | {kind:>13} |"
        yield "| ---         | ---        | ---       | ---                            | ---           |"
        for each in self.measured:
            yield self.row(each)
        for size in sorted(self.overflows):
            yield f"| {size:11} | {self.num_parts(size):10} | {'':9} | {'out of memory':30} | {'':13} |"
        yield ""
        if note := timing.note(self.waiting):
            yield note
        yield from notes(self.properties)
        yield from self.conclusion()

    def num_parts(self, size: int) -> int:
        """Return the number of micro-batches of `size` samples in a step."""
        return self.batch_size // self.lane_size * -(-self.lane_size // size)

    def row(self, each: Measured) -> str:
        parts = self.num_parts(each.size)
        if each.obstacle:
            return f"| {each.size:11} | {parts:10} | {'':9} | not possible: {each.obstacle} |"
        spread = timing.spread([self.batch_size / seconds for seconds in self.seconds[each.size]])
        rate = f"{spread.median:,.0f} ({spread.least:,.0f} to {spread.most:,.0f})"
        return (
            f"| {each.size:11} | {parts:10} | {1000 * self.batch_size / spread.median:9.2f} | {rate:30} | {each.peak_bytes / 1e6:13,.0f} |"
        )

    def conclusion(self) -> Iterator[str]:
        """Yield the proposed change and the command that makes it, or a line that says that the configured size stays."""
        if self.proposed == self.present:
            yield f"train.micro_batch_size: {self.present} stays: no smaller size is as fast, and no larger one is faster."
            return
        if self.present in self.seconds:
            ratio = timing.ratios(self.seconds[self.present], self.seconds[self.proposed]).median
            peaks = {each.size: each.peak_bytes for each in self.measured}
            saved = (peaks[self.present] - peaks[self.proposed]) / 1e6
            reason = "" if ratio > NOISE else f", which is within the noise, and {saved:,.0f} MB less memory"
            yield f"{self.proposed} instead of {self.present}: {ratio:.2f} times as fast{reason}. The batch stays {self.batch_size}."
        else:
            yield f"{self.proposed} instead of {self.present}, which does not fit. The batch stays {self.batch_size}."
        yield f"python -m pipeline set train.micro_batch_size={self.proposed}"


def notes(properties: TrainingProperties) -> Iterator[str]:
    """Yield a sentence about each kind of layer that makes the result of a training depend on the micro-batch size."""
    if properties.norms:
        yield (
            f"BatchNorm ({listed(properties.norms)}) uses the mean and variance of each micro-batch, not of the batch: another micro_batch_size gives "
            "another model, and few samples give noisy statistics."
        )
    if properties.dropouts:
        yield f"Dropout ({listed(properties.dropouts)}) draws for each micro-batch: another micro_batch_size gives other random numbers."
    if not properties.norms and not properties.dropouts:
        yield "The model has no BatchNorm and no dropout: micro_batch_size changes its result by rounding only."


def listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name or "the network" for name in names[:most]) + more


def largest_that_fits(sizes: Sequence[int], fits: Callable[[int], bool], *, start: int) -> int | None:
    """Return the largest of the ascending `sizes` that fits, or None if none fits.

    The search begins at index `start`, at least doubles the size until one does not fit, and then bisects. `fits(size)` measures a size.
    """
    low, high, position = -1, len(sizes), start
    while low + 1 < high:
        if fits(sizes[position]):
            low = position
        else:
            high = position
        if high == len(sizes):
            position = next((index for index in range(low + 1, high) if sizes[index] >= 2 * sizes[low]), high - 1)
        else:
            position = (low + high) // 2
    return sizes[low] if low >= 0 else None


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def measure_sizes(settings: LoopSettings) -> Result:
    """Measure micro-batch sizes for the training of this checkout.

    Raises Refusal if no size is possible, if `train.compile` is `graphs`, or if the training itself would raise it.
    """
    if settings.compile == "graphs":
        raise Refusal("train.compile: `graphs` needs micro_batch_size equal to batch_size: write `train.compile: default` to compare sizes")
    lane_size = settings.batch_size // settings.lanes
    sizes = divisors(lane_size)
    with ExitStack() as closing:
        search = SizeSearch(int(BUDGET_SHARE * micro_batches.available_bytes()))
        closing.callback(search.closing.close)
        properties = search.process_for(1).properties()
        if properties.device == "cuda":
            search.budget_bytes = None
            search.renew()
        largest = largest_that_fits(
            sizes, search.fits, start=max(index for index, size in enumerate(sizes) if size <= max(1, lane_size // START_PARTS))
        )
        present = min(settings.micro_batch_size, lane_size)
        if largest and present < largest and present not in search.results:
            search.fits(present)  # to compare with
        seconds, waiting = search.compared()
    return Result(
        properties=properties,
        batch_size=settings.batch_size,
        lane_size=lane_size,
        present=present,
        proposed=smallest_of_fastest({size: each for size, each in seconds.items() if lane_size % size == 0}, present),
        measured=[search.results[size] for size in sorted(search.results)],
        seconds=seconds,
        overflows=search.overflows,
        budget_bytes=search.budget_bytes,
        waiting=waiting,
    )


def smallest_of_fastest(seconds: dict[int, list[float]], present: int) -> int:
    """Return the smallest size that is as fast as both the fastest size and `present`. `seconds` has the seconds per step of each round.

    One size is as fast as another if its steps take at most NOISE times as long in the median of the rounds. If no size is as fast as both,
    because the rounds contradict each other, return `present`, or the fastest size if `present` was not measured.
    """
    fastest = min(seconds, key=lambda size: timing.spread(seconds[size]).median)
    others = [fastest, *([present] if present in seconds else [])]
    for size in sorted(seconds):
        if all(timing.ratios(seconds[size], seconds[other]).median <= NOISE for other in others):
            return size
    return others[-1]
