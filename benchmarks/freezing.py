"""`python -m benchmarks.freezing PRESET STEPS`: what a step costs with and without `train.freeze` of a parameter file, in time and memory.

The images are random and the weights untrained, which changes no cost. The steps of both trainings alternate.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.data.prepared import Prepared, Split
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.fit import Report
from pipeline.inputs.image.description import ImageInputs
from pipeline.params.load import from_data
from pipeline.params.train import TrainParams
from pipeline.params.yaml_document import Document
from pipeline.runtime.environment import Environment
from pipeline.runtime.machine import Machine
from pipeline.runtime.processes import ALONE, Processes
from pipeline.spec import Spec
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.training import Training

CLASSES = tuple("abcde")
MANY = 10_000


def random_images(side: int, count: int) -> Prepared:
    random = np.random.default_rng(1)
    inputs = ImageInputs(height=side, width=side, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)
    split = Split(random.integers(0, 256, (count, side, side, 3), dtype=np.uint8), np.arange(count) % len(CLASSES))
    return Prepared(Spec(inputs=inputs, targets=ClassTargets(classes=CLASSES)), "random", {"train": split})


def begin(
    data: dict[str, Any], changes: dict[str, Any], prepared: Prepared, machine: Machine, folder: Path, processes: Processes = ALONE
) -> tuple[Training, Iterator[Report]]:
    """Return a training that reports and validates in no step, and its steps. `changes` are changes of the section `train`."""
    length = {"epochs": None, "steps": MANY, "report_every_steps": MANY, "validate_every_steps": MANY}
    changed = {**data, "model": {**data["model"], "weights": None}, "train": {**data["train"], **length, **changes}}
    params = from_data({name: changed[name] for name in TrainParams.model_fields}, TrainParams, "benchmark")
    training = Training.begin(params, prepared, machine, Checkpoints(folder, 1), processes=processes)
    return training, training.reports()


def kept_bytes(training: Training, steps: Iterator[Report]) -> tuple[int, int]:
    """Run one step. Return the bytes that autograd keeps for its backward pass, without the weights, and those of gradients and optimizer state."""
    model = training.state.model
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        next(steps)
    states = [value for state in training.state.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return sum(kept.values()), sum(tensor.nbytes for tensor in (*states, *gradients))


def main(path: str, count: str) -> None:
    data, machine = Document.read(Path(path)).data, Machine.claim(Environment.read())
    prepared = random_images(data["source"]["size"], 4 * data["train"]["batch_size"])
    with tempfile.TemporaryDirectory() as folder:
        trainings = {
            name: begin(data, {"freeze": freeze}, prepared, machine, Path(folder))
            for name, freeze in {"everything": [], "frozen": data["train"]["freeze"]}.items()
        }
        memory = {name: kept_bytes(*training) for name, training in trainings.items()}
        seconds: dict[str, list[float]] = {name: [] for name in trainings}
        for _ in range(int(count)):
            for name, (training, steps) in trainings.items():
                start = time.perf_counter()
                next(steps)
                if training.machine.device.type == "cuda":
                    torch.cuda.synchronize(training.machine.device)
                seconds[name].append(time.perf_counter() - start)
    for name, (activations, rest) in memory.items():
        shown = f"{activations / 1e6:.0f} MB of activations, {rest / 1e6:.1f} MB of gradients and optimizer state"
        print(f"{name}: {1e3 * statistics.median(seconds[name]):.0f} ms a step, {shown}")
    ratio = statistics.median(one / other for one, other in zip(seconds["frozen"], seconds["everything"], strict=True))
    print(f"frozen / everything: {ratio:.2f} of the time, the median of {count} pairs of steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
