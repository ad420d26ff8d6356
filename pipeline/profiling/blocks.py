"""The timer of comparisons within one process: blocks of steps of several trainings run in turn, so that drift of the machine affects all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Step = Callable[[], object]


class Spread(NamedTuple):
    """A value that was measured several times."""

    median: float
    least: float
    most: float


def interleaved(
    steps: Mapping[str, tuple[Step, int]],
    *,
    rounds: int,
    synchronize: Callable[[], object],
    before: Callable[[str], object] = lambda _: None,
) -> dict[str, list[float]]:
    """Run one block of each of `steps` in every round, A B C and then C B A. Return the seconds of a step in each block, by name.

    `steps` maps a name to a function that makes one step, and to the number of steps of its block. `synchronize()` waits for the device, at
    the beginning and the end of a block only: between them, the host may run ahead, as in a training. `before(name)` is called before each
    block and is not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps)[:: 1 if number % 2 == 0 else -1]:
            step, count = steps[name]
            before(name)
            synchronize()
            start_s = time.perf_counter()
            for _ in range(count):
                step()
            synchronize()
            seconds[name].append((time.perf_counter() - start_s) / count)
    return seconds


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratios(numerators: list[float], denominators: list[float]) -> Spread:
    """Return the spread of the ratios of values that were measured in the same rounds."""
    return spread([one / other for one, other in zip(numerators, denominators, strict=True)])
