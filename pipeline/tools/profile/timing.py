"""Times several trainings in one process, in blocks of steps that alternate, so that a drift of the machine's speed affects all alike."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.core.environment import Environment
from pipeline.core.params import adding_lines, load
from pipeline.core.paths import Paths
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.train.params import TrainParams

if TYPE_CHECKING:
    from pipeline.core.prepared import Prepared
    from pipeline.inference.machine import Machine

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


SCHEDULER_STATISTICS = Path("/proc/self/schedstat")
"""The main thread's nanoseconds on a CPU, its nanoseconds of waiting for a CPU, and the number of its time slices (the kernel's
sched-stats.rst)."""
CROWDED = 0.1
"""If the main thread waits for a CPU for a larger share of the time, the measurement gets a warning."""


def cpu_wait_s() -> float:
    """Return how long the main thread of this process has waited for a CPU since its start; 0 if the kernel does not report it."""
    try:
        return int(SCHEDULER_STATISTICS.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def note(share: float) -> str | None:
    """Return a warning if `share`, the share of the time in which the main thread waited for a CPU, exceeds CROWDED. Else return None."""
    if share <= CROWDED:
        return None
    return (
        f"Other processes use the CPUs: for {share:.0%} of the time, this process had to wait for one. Measure again when they have ended."
    )


class Setup(NamedTuple):
    params: TrainParams
    prepared: "Prepared"
    machine: "Machine"


@contextmanager
def ready(paths: Paths, environment: Environment) -> Iterator[Setup]:
    """Validate the parameters, set up the machine and open the prepared data. A Refusal from the block is raised with lines of params.yaml.

    Only one process is measured. If the environment asks for several, a note on stderr says so. Raises Refusal like the stage `train`.
    """
    document = Document.read(paths.params)
    params = load(document, TrainParams)
    from pipeline.core.prepared import Prepared  # late: a typing error in params.yaml is reported before the import of torch
    from pipeline.inference.machine import Machine, set_determinism

    if environment.processes != 1:
        print("note: PIPELINE_PROCESSES: one process with the whole batch is measured", file=sys.stderr)
    with adding_lines(document):
        machine = Machine.set_up(environment.model_copy(update={"local_world_size": 1}))
        set_determinism(params.train.deterministic)
        yield Setup(params, Prepared.open(paths.prepared), machine)


def refuse_steps_below_one(steps: int | None) -> None:
    """Raise Refusal if `steps`, the value of the option `--steps`, is below 1. None stands for the default."""
    if steps is not None and steps < 1:
        raise Refusal(f"--steps: is {steps}: write a number from 1 on")
