"""`python -m benchmarks`: run blocks of steps of every training loop in turn, and print a table of their ratios."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.job import MODELS, Job
from benchmarks.report import Measurement
from benchmarks.worker import LOOPS, Block, Worker
from pipeline.inference.machine import Machine

TOLERANCE = 0.05
UNTRAINED = ("floor", "data")
"""Loops without a comparable loss: one trains on a single batch, one does not train."""
CALIBRATION_STEPS = 20


@contextmanager
def suspended_workers(loops: list[str], job: Job) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        for loop in loops:
            folder = job.folder / loop.replace(", ", "-").replace(" ", "-")
            folder.mkdir(exist_ok=True)
            workers.append(Worker.start(loop, replace(job, folder=folder)))
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def measure(loops: list[str], job: Job) -> Measurement:
    """Run the blocks of all loops in turn, A B C then C B A, so that drift of the machine's speed affects all loops alike."""
    blocks: dict[str, list[Block]] = {loop: [] for loop in loops}
    with suspended_workers(loops, job) as workers:
        for number in range(job.rounds):
            for worker in workers if number % 2 == 0 else reversed(workers):
                blocks[worker.loop].append(worker.block())
        results = {worker.loop: worker.finish() for worker in workers}
    refuse_unequal_losses(job.model, results)
    return Measurement(job, blocks, results)


def refuse_unequal_losses(model: str, results: dict[str, dict[str, Any]]) -> None:
    """Exit if the mean loss of a loop is not within TOLERANCE of the pipeline's: a loop that skips work learns less.

    Losses are not exactly equal, because each loop draws its own crops and flips.
    """
    losses = {loop: result["loss"] for loop, result in results.items() if loop not in UNTRAINED}
    for loop, loss in losses.items():
        if not abs(loss - losses["pipeline"]) <= TOLERANCE * losses["pipeline"]:
            raise SystemExit(
                f"{model}: {loop} had a mean loss of {loss:.3f}, the pipeline of {losses['pipeline']:.3f}: the loops do not do the same work"
            )


def calibrated_steps(block_s: float, job: Job) -> int:
    """Return the number of bare steps that take `block_s` seconds, as a multiple of 10: the pipeline reports every 10 steps."""
    tried = measure(["floor"], replace(job, block_steps=CALIBRATION_STEPS, rounds=2)).blocks["floor"]
    return 10 * max(1, round(block_s * CALIBRATION_STEPS / min(block.elapsed_s for block in tried) / 10))


def main(arguments: argparse.Namespace) -> None:
    measurements = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(model, Path(folder), arguments.batch_size, 20, 10, arguments.rounds, arguments.workers)
            job = replace(job, block_steps=arguments.block_steps or calibrated_steps(arguments.block_s, job))
            measurements.append(measure(arguments.loops, job))
        print(report.table(measurements[-1]), flush=True)
        if arguments.output:
            report.write(arguments.output, measurements)


def parse_arguments() -> argparse.Namespace:
    from pipeline.core.environment import Environment

    threads = Machine.set_up(Environment.read()).threads
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-s", type=float, default=5.0, help="duration of a block of the floor in seconds")
    parser.add_argument("--block-steps", type=int, help="number of steps in a block, a multiple of 10, instead of --block-s")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=threads, help="number of worker processes, for DataLoaders that have any")
    parser.add_argument("--output", type=Path, help="path of the results without suffix: .json, .md and .png are written")
    arguments = parser.parse_args()
    if "pipeline" not in arguments.loops or "floor" not in arguments.loops:
        parser.error("--loops: `floor` and `pipeline` are needed for every comparison")
    if arguments.block_steps and arguments.block_steps % 10:
        parser.error("--block-steps: must be a multiple of 10, because a report is due every ten steps")
    return arguments


if __name__ == "__main__":
    main(parse_arguments())
