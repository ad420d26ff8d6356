"""What tracking costs a training: `python -m tests.faults.cost [BLOCKS]`. Nothing is asserted: a busy machine decides nothing.

Blocks of steps without tracking, with it, and with a server that is dead take turns in one process; the mirrors of the other ways are
stopped meanwhile. So every way meets the same machine, and the median over the rounds of the ratio of a block to its neighbour is what
the reports cost the loop together with the mirror beside it.
"""

import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from pipeline.environment import Environment
from pipeline.tracking import attendant, run
from pipeline.tracking.attendant import LOG, Attendant
from pipeline.tracking.facts import Facts
from pipeline.tracking.position import DELIVERED
from pipeline.tracking.run import Run
from tests.faults.servers import free_port

OFF, ON, DEAD = "off", "on, into SQLite", "to a dead server"
STEPS_A_BLOCK = 50
VALUES = {"train/loss": 0.5, "train/rate": 2.0, "train/norm": 3.0, "train/scale": 4.0}


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
        print(f"run.metrics with four metrics, again and again: median {reports_ms(runs[DEAD]):.4f} ms")


def tell(seconds: dict[str, list[float]], every_steps: int) -> None:
    print(f"four metrics every {every_steps} steps, {len(seconds[OFF])} blocks of {STEPS_A_BLOCK} steps | ms a step | against off")
    for way, spent_s in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(spent_s, seconds[OFF], strict=True))
        print(f"{way:>18} | {1000 * statistics.median(spent_s) / STEPS_A_BLOCK:.3f} | {100 * (ratio - 1):+.2f}%")


def opened(root: Path, address: str, mirrors: dict[str, int], way: str):  # type: ignore[no-untyped-def]  # a context of Run
    """A run whose mirror's process id is kept."""
    root.mkdir()
    os.environ.update(DVC_ROOT=str(root), MLFLOW_TRACKING_URI=address, PIPELINE_TRACKING_WAIT_S="0")
    start: Callable[[Path, Environment], Attendant | None] = attendant.start

    def kept(folder: Path, environment: Environment) -> Attendant | None:
        begun = start(folder, environment)
        assert begun
        mirrors[way] = begun._process.pid
        attendant.start = start
        return begun

    attendant.start = kept
    return run.training(Environment.read(), resume_file=root / "work/run", facts=Facts())


def await_mirror(reports: Run | None, file: str) -> None:
    """Until it has imported MLflow and has met its server, or failed to."""
    assert reports
    assert reports.folder
    path = reports.folder / file
    while not path.exists() or not path.stat().st_size:
        time.sleep(0.1)


def measured(runs: dict[str, Run | None], mirrors: dict[str, int], num_blocks: int, every_steps: int) -> dict[str, list[float]]:
    step, count = training_step(), itertools.count(10**6 * every_steps)
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for block in range(num_blocks):
        order = list(runs) if block % 2 else list(reversed(runs))
        for way in order:
            for other, pid in mirrors.items():
                os.kill(pid, signal.SIGCONT if other == way else signal.SIGSTOP)
            begin = time.perf_counter()
            for number in range(STEPS_A_BLOCK):
                step()
                if number % every_steps == 0 and (reports := runs[way]) is not None:
                    reports.metrics(next(count), VALUES)
            seconds[way].append(time.perf_counter() - begin)
    return seconds


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


def reports_ms(reports: Run | None, num_reports: int = 5_000) -> float:
    assert reports
    spent_s = []
    for step in range(10**8, 10**8 + num_reports):
        begin = time.perf_counter()
        reports.metrics(step, VALUES)
        spent_s.append(time.perf_counter() - begin)
    return 1000 * statistics.median(spent_s)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
