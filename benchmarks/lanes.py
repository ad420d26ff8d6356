"""`torchrun --nproc-per-node=N -m benchmarks.lanes FILE STEPS`: what a step of N processes costs with `train.lanes: N`, beside `lanes: 1`.

The images are random, which changes no cost. The steps of both trainings alternate. Rank 0 prints the result.
"""

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.freezing import random_images, training_of
from pipeline.core.environment import Environment
from pipeline.core.yaml_document import Document
from pipeline.inference.machine import Machine
from pipeline.tools.profile.trial import interleaved, ratios, stepping, time_block
from pipeline.train.engine.fit import Report
from pipeline.train.group import processes


def main(path: str, count: str) -> None:
    data, environment = Document.read(Path(path)).data, Environment.read()
    machine = Machine.set_up(environment)
    prepared = random_images(data["source"]["image_size"], 4 * data["train"]["batch_size"])
    with processes.joined(environment, machine.device) as group, ExitStack() as closing:

        def time_step(steps: Iterator[Report]) -> float:
            group.wait()
            return time_block(partial(next, steps), 1, machine.device)

        blocks = {}
        for lanes in (1, group.size):
            training = training_of(data, {"lanes": lanes}, prepared, machine, group)
            blocks[str(lanes)] = partial(time_step, closing.enter_context(stepping(training)))
        seconds = interleaved(blocks, int(count))
        if group.writes:
            for name, each in seconds.items():
                print(f"lanes: {name}: {1e3 * statistics.median(each):.1f} ms a step of {group.size} processes")
            ratio = ratios(seconds[str(group.size)], seconds["1"]).median
            print(f"lanes: {group.size} / lanes: 1: {ratio:.3f} of the time, the median of {count} pairs of steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
