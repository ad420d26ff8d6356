"""`torchrun --nproc-per-node=N -m benchmarks.lanes FILE STEPS`: what a step of N processes costs with `train.lanes: N`, beside `lanes: 1`.

The images are random, which changes no cost. The steps of both trainings alternate. Rank 0 prints the result.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.freezing import begin, random_images
from pipeline.params.yaml_document import Document
from pipeline.runtime import processes
from pipeline.runtime.environment import Environment
from pipeline.runtime.machine import Machine


def main(path: str, count: str) -> None:
    data, environment = Document.read(Path(path)).data, Environment.read()
    machine = Machine.claim(environment)
    prepared = random_images(data["source"]["size"], 4 * data["train"]["batch_size"])
    with processes.joined(environment, machine.device) as group, tempfile.TemporaryDirectory() as folder:
        seconds: dict[int, list[float]] = {1: [], group.size: []}
        trainings = {lanes: begin(data, {"lanes": lanes}, prepared, machine, Path(folder), group) for lanes in seconds}
        for _ in range(int(count)):
            for lanes, (_, steps) in trainings.items():
                group.wait()
                start = time.perf_counter()
                next(steps)
                if machine.device.type == "cuda":
                    torch.cuda.synchronize(machine.device)
                seconds[lanes].append(time.perf_counter() - start)
        if group.is_first:
            for lanes, each in seconds.items():
                print(f"lanes: {lanes}: {1e3 * statistics.median(each):.1f} ms a step of {group.size} processes")
            ratio = statistics.median(one / other for one, other in zip(seconds[group.size], seconds[1], strict=True))
            print(f"lanes: {group.size} / lanes: 1: {ratio:.3f} of the time, the median of {count} pairs of steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
