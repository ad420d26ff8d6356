"""What tracking costs a training: `python -m tests.faults.tracking_cost [BLOCKS]`. Nothing is asserted: a busy machine decides nothing.

Blocks of steps without tracking, with it, and with a server that is dead take turns in one process; the mirrors of the other ways are
stopped meanwhile. So every way meets the same machine, and the median over the rounds of the ratio of a block to its neighbour is what
the reports cost: by the clock, and by the processor time of the loop's own thread, which other programs disturb less. What the mirror takes
of a core beside the loop is told apart.
"""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from torch import nn

from pipeline.core.environment import Environment
from pipeline.runs import run
from pipeline.runs.events import DELIVERED
from pipeline.runs.journal import RunInfo
from pipeline.runs.mlflow import mirror_process
from pipeline.runs.mlflow.mirror_process import LOG
from pipeline.runs.run import Run
from tests.forking import free_port

OFF, ON, DEAD = "off", "on, into SQLite", "to a dead server"
STEPS_A_BLOCK = 50
VALUES = {"train/loss": 0.5, "train/rate": 2.0, "train/norm": 3.0, "train/scale": 4.0}


@dataclass
class Spent:
    """What one way took, block by block."""

    wall_s: list[float] = field(default_factory=list)
    loop_s: list[float] = field(default_factory=list)
    mirror_s: float = 0.0


def main(num_blocks: int = 200) -> None:
    mirrors: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as top, ExitStack() as stack:
        runs: dict[str, Run | None] = {OFF: None}
        for way, address in ((ON, ""), (DEAD, f"http://127.0.0.1:{free_port()}")):
            runs[way] = stack.enter_context(opened(Path(top) / way.replace(" ", "-"), address, mirrors, way))
        for way, file in ((ON, DELIVERED), (DEAD, LOG)):
            await_mirror(runs[way], file)
        stack.callback(lambda: [os.kill(pid, signal.SIGCONT) for pid in mirrors.values()])
        for every_steps in (1, 10):
            tell(measured(runs, mirrors, num_blocks, every_steps), every_steps)
        again_ms, between_ms = reports_ms(runs[DEAD], lambda: None, first=10**8), reports_ms(runs[DEAD], training_step(), first=10**9)
        print(
            f"run.metrics with four metrics, median: {again_ms:.4f} ms again and again, {between_ms:.4f} ms between steps, which leave its caches cold"
        )


def tell(spent: dict[str, Spent], every_steps: int) -> None:
    print(f"four metrics every {every_steps} steps, {len(spent[OFF].wall_s)} blocks of {STEPS_A_BLOCK} steps")
    print(f"{'':>18} | ms a step | by the clock | by the loop's processor time | the mirror, of a core")
    for way, taken in spent.items():
        step_ms = 1000 * statistics.median(taken.wall_s) / STEPS_A_BLOCK
        shares = (more(taken.wall_s, spent[OFF].wall_s), more(taken.loop_s, spent[OFF].loop_s), taken.mirror_s / sum(taken.wall_s))
        print(f"{way:>18} | {step_ms:.3f} | {shares[0]:+.2%} | {shares[1]:+.2%} | {shares[2]:.2%}")


def more(some_s: list[float], others_s: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(some_s, others_s, strict=True)) - 1


def opened(root: Path, address: str, mirrors: dict[str, int], way: str):  # type: ignore[no-untyped-def]  # a context of Run
    """A run whose mirror's process id is kept."""
    root.mkdir()
    os.environ.update(DVC_ROOT=str(root), MLFLOW_TRACKING_URI=address, PIPELINE_TRACKING_WAIT_S="0")
    start: Callable[[Path, Environment], subprocess.Popen[bytes] | None] = mirror_process.start

    def kept(folder: Path, environment: Environment) -> subprocess.Popen[bytes] | None:
        begun = start(folder, environment)
        assert begun
        mirrors[way] = begun.pid
        mirror_process.start = start
        return begun

    mirror_process.start = kept
    return run.training(Environment.read(), resume_file=root / "work/run", info=RunInfo())


def await_mirror(reports: Run | None, file: str) -> None:
    """Until it has imported MLflow and has met its server, or failed to."""
    assert reports
    assert reports.folder
    path = reports.folder / file
    while not path.exists() or not path.stat().st_size:
        time.sleep(0.1)


def measured(runs: dict[str, Run | None], mirrors: dict[str, int], num_blocks: int, every_steps: int) -> dict[str, Spent]:
    step, count = training_step(), itertools.count(10**6 * every_steps)
    spent = {way: Spent() for way in runs}
    for block in range(num_blocks):
        order = list(runs) if block % 2 else list(reversed(runs))
        for way in order:
            for other, pid in mirrors.items():
                os.kill(pid, signal.SIGCONT if other == way else signal.SIGSTOP)
            mirror_s, loop_s, wall_s = processor_s(mirrors.get(way)), time.thread_time(), time.perf_counter()
            for number in range(STEPS_A_BLOCK):
                step()
                if number % every_steps == 0 and (reports := runs[way]) is not None:
                    reports.metrics(next(count), VALUES)
            spent[way].wall_s.append(time.perf_counter() - wall_s)
            spent[way].loop_s.append(time.thread_time() - loop_s)
            spent[way].mirror_s += processor_s(mirrors.get(way)) - mirror_s
    return spent


def processor_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def training_step() -> Callable[[], None]:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, targets = torch.randn(64, 256), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()

    return step


def reports_ms(reports: Run | None, before: Callable[[], None], *, first: int, num_reports: int = 3_000) -> float:
    assert reports
    spent_s = []
    for step in range(first, first + num_reports):
        before()
        begin = time.perf_counter()
        reports.metrics(step, VALUES)
        spent_s.append(time.perf_counter() - begin)
    return 1000 * statistics.median(spent_s)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
