"""`python -m benchmarks`: run blocks of steps of every way of training in turn, and print a table of their ratios."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.job import MODELS, Job
from benchmarks.worker import WAYS, Block, Worker
from pipeline.runtime.machine import Machine

TOLERANCE = 0.05
UNTRAINED = ("floor", "data")
"""Ways without a comparable loss: one trains on a single batch, one does not train."""
TRIED_STEPS = 20


@dataclass(frozen=True)
class Measured:
    """The results for one model: the blocks of each way, and its final loss and memory."""

    job: Job
    blocks: dict[str, list[Block]]
    said: dict[str, dict[str, Any]]


@contextmanager
def started(ways: list[str], job: Job) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        for way in ways:
            folder = job.folder / way.replace(", ", "-").replace(" ", "-")
            folder.mkdir(exist_ok=True)
            workers.append(Worker.start(way, replace(job, folder=folder)))
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def measure(ways: list[str], job: Job) -> Measured:
    """Run the blocks of all ways in turn, A B C then C B A, so that drift of the machine's speed affects all ways alike."""
    blocks: dict[str, list[Block]] = {way: [] for way in ways}
    with started(ways, job) as workers:
        for number in range(job.rounds):
            for worker in workers if number % 2 == 0 else reversed(workers):
                blocks[worker.way].append(worker.block())
        said = {worker.way: worker.finish() for worker in workers}
    refuse_unequal_losses(job.model, said)
    return Measured(job, blocks, said)


def refuse_unequal_losses(model: str, said: dict[str, dict[str, Any]]) -> None:
    """Exit if the mean loss of a way is not within TOLERANCE of the pipeline's: a way that skips work learns less.

    Losses are not exactly equal, because each way draws its own crops and flips.
    """
    losses = {way: found["loss"] for way, found in said.items() if way not in UNTRAINED}
    for way, loss in losses.items():
        if not abs(loss - losses["pipeline"]) <= TOLERANCE * losses["pipeline"]:
            raise SystemExit(
                f"{model}: {way} had a mean loss of {loss:.3f}, the pipeline of {losses['pipeline']:.3f}: they did not do the same work"
            )


def steps_in(block_s: float, job: Job) -> int:
    """Return the number of bare steps that take `block_s` seconds, as a multiple of 10: the pipeline reports every 10 steps."""
    tried = measure(["floor"], replace(job, block_steps=TRIED_STEPS, rounds=2)).blocks["floor"]
    return 10 * max(1, round(block_s * TRIED_STEPS / min(block.elapsed_s for block in tried) / 10))


def main(arguments: argparse.Namespace) -> None:
    found = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(model, Path(folder), arguments.batch_size, 20, 10, arguments.rounds, arguments.workers)
            job = replace(job, block_steps=arguments.block_steps or steps_in(arguments.block_s, job))
            found.append(measure(arguments.ways, job))
        print(report.table(found[-1]), flush=True)
        if arguments.output:
            report.write(arguments.output, found)


def parsed() -> argparse.Namespace:
    from pipeline.runtime.environment import Environment

    threads = Machine.claim(Environment.read()).threads
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-s", type=float, default=5.0, help="seconds that a block of bare steps takes")
    parser.add_argument("--block-steps", type=int, help="the same in steps, in whole tens")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=threads, help="processes of a DataLoader that has some")
    parser.add_argument("--output", type=Path, help="where the figures go: NAME.json and NAME.png")
    arguments = parser.parse_args()
    if "pipeline" not in arguments.ways or "floor" not in arguments.ways:
        parser.error("--ways: `floor` and `pipeline` are what the others are compared with")
    if arguments.block_steps and arguments.block_steps % 10:
        parser.error("--block-steps: a report falls due every ten steps: give whole tens")
    return arguments


if __name__ == "__main__":
    main(parsed())
