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
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import torch
from torch import nn

from pipeline.core.environment import Environment
from pipeline.runs import run
from pipeline.runs.events import DELIVERED
from pipeline.runs.journal import RunInfo
from pipeline.runs.mlflow.mirror_process import LOG, STARTED
from pipeline.runs.run import Run
from tests.forking import free_port

OFF, ON, DEAD = "off", "on, into SQLite", "to a dead server"
STEPS_A_BLOCK = 50
VALUES = {"train/loss": 0.5, "train/rate": 2.0, "train/norm": 3.0, "train/scale": 4.0}


def main(num_blocks: int = 200) -> None:
    runs: dict[str, Run] = {}
    mirrors: dict[str, psutil.Process] = {}
    with tempfile.TemporaryDirectory() as top, ExitStack() as stack:
        for way, address, file in ((ON, "", DELIVERED), (DEAD, f"http://127.0.0.1:{free_port()}", LOG)):
            root = Path(top) / way.replace(" ", "-")
            root.mkdir()
            os.environ.update(DVC_ROOT=str(root), MLFLOW_TRACKING_URI=address, PIPELINE_TRACKING_WAIT_S="0")
            tracked = run.training(Environment.read(), resume_file=root / "work/run", info=RunInfo())
            runs[way], mirrors[way] = stack.enter_context(tracked), psutil.Process(STARTED[-1].pid)
            stack.callback(mirrors[way].send_signal, signal.SIGCONT)
            while not list(root.glob(f".pipeline/journal/*/{file}")) or not next(root.glob(f".pipeline/journal/*/{file}")).stat().st_size:
                time.sleep(0.1)  # until the mirror has imported MLflow and has met its server, or failed to
        for every_steps in (1, 10):
            compare(runs, mirrors, num_blocks, every_steps)
        again_ms, between_ms = (reports_ms(runs[DEAD], step, first) for first, step in ((10**8, lambda: None), (10**9, training_step())))
        print(
            f"run.metrics with four metrics, median: {again_ms:.4f} ms again and again, {between_ms:.4f} ms between steps, with cold caches"
        )


def compare(runs: dict[str, Run], mirrors: dict[str, psutil.Process], num_blocks: int, every_steps: int) -> None:
    """Run the blocks, and print what each way took."""
    step, count = training_step(), itertools.count(10**6 * every_steps)
    wall_s, loop_s, mirror_s = (defaultdict[str, list[float]](list) for _ in range(3))
    for block in range(num_blocks):
        for way in (OFF, ON, DEAD)[:: 1 if block % 2 else -1]:
            for other, mirror in mirrors.items():
                mirror.send_signal(signal.SIGCONT if other == way else signal.SIGSTOP)
            before = processor_s(mirrors.get(way)), time.thread_time(), time.perf_counter()
            for number in range(STEPS_A_BLOCK):
                step()
                if number % every_steps == 0 and way in runs:
                    runs[way].metrics(next(count), VALUES)
            wall_s[way].append(time.perf_counter() - before[2])
            loop_s[way].append(time.thread_time() - before[1])
            mirror_s[way].append(processor_s(mirrors.get(way)) - before[0])
    print(f"four metrics every {every_steps} steps, {num_blocks} blocks of {STEPS_A_BLOCK} steps")
    print(f"{'':>18} | ms a step | by the clock | by the loop's processor time | the mirror, of a core")
    for way in (OFF, ON, DEAD):
        by_clock, by_loop = (
            statistics.median(one / other for one, other in zip(spent[way], spent[OFF], strict=True)) - 1 for spent in (wall_s, loop_s)
        )
        step_ms, share = 1000 * statistics.median(wall_s[way]) / STEPS_A_BLOCK, sum(mirror_s[way]) / sum(wall_s[way])
        print(f"{way:>18} | {step_ms:.3f} | {by_clock:+.2%} | {by_loop:+.2%} | {share:.2%}")


def processor_s(process: psutil.Process | None) -> float:
    return sum(process.cpu_times()[:2]) if process else 0.0


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


def reports_ms(reports: Run, before: Callable[[], None], first: int, num_reports: int = 3_000) -> float:
    spent_s = []
    for step in range(first, first + num_reports):
        before()
        begin_s = time.perf_counter()
        reports.metrics(step, VALUES)
        spent_s.append(time.perf_counter() - begin_s)
    return 1000 * statistics.median(spent_s)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
