"""Times several trainings in one process. Their blocks of steps alternate, so that a drift of the machine's speed affects all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Step = Callable[[], object]


class Spread(NamedTuple):
    """The median, minimum and maximum of a value that was measured several times."""

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
    """Run one block of each of `steps` in every round, and reverse their order in every second round. Return seconds per step by name.

    `steps` maps a name to a pair: a function that makes one step, and the number of steps in its block. The result has a value for each
    block. `synchronize()` waits for the device; it is called only at the beginning and the end of a block, so that the host may run ahead in
    between, as in a training. `before(name)` is called before each block and is not timed.
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
