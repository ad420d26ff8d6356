"""`python -m benchmarks.freezing PRESET STEPS`: what a step costs with and without `train.freeze` of a parameter file, in time and memory.

The images are random and the weights untrained, which changes no cost. The steps of both trainings alternate.
"""

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.core.environment import Environment
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared, Split
from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.inference.machine import Machine
from pipeline.inputs.image.description import ImageInputs
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tools.profile.trial import NEVER, Trial, interleaved, ratios, stepping, time_block
from pipeline.train.engine.fit import Report
from pipeline.train.group.processes import ALONE, Group
from pipeline.train.params import TrainParams
from pipeline.train.training import Training

CLASSES = tuple("abcde")


def random_images(side: int, count: int) -> Prepared:
    random = np.random.default_rng(1)
    inputs = ImageInputs(height=side, width=side, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)
    split = Split(random.integers(0, 256, (count, side, side, 3), dtype=np.uint8), np.arange(count) % len(CLASSES))
    return Prepared(Spec(inputs=inputs, targets=ClassTargets(classes=CLASSES)), "random", {"train": split})


def training_of(data: dict[str, Any], changes: dict[str, Any], prepared: Prepared, machine: Machine, group: Group = ALONE) -> Trial:
    """Return the training of a parameter file that reports and validates in no step. `changes` are changes of the section `train`."""
    sections = {**data, "model": {**data["model"], "weights": None}}
    params = from_data({name: sections[name] for name in TrainParams.model_fields}, TrainParams, "benchmark")
    return Trial.of(params, prepared, machine, changes={"report_every_steps": NEVER, **changes}, group=group)


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
    data, machine = Document.read(Path(path)).data, Machine.set_up(Environment.read())
    prepared = random_images(data["source"]["image_size"], 4 * data["train"]["batch_size"])
    with ExitStack() as closing:
        trainings = {
            name: training_of(data, {"freeze": freeze}, prepared, machine)
            for name, freeze in {"everything": [], "frozen": data["train"]["freeze"]}.items()
        }
        steps = {name: closing.enter_context(stepping(training)) for name, training in trainings.items()}
        memory = {name: kept_bytes(training, steps[name]) for name, training in trainings.items()}
        blocks = {name: partial(time_block, partial(next, each), 1, machine.device) for name, each in steps.items()}
        seconds = interleaved(blocks, int(count))
    for name, (activations, rest) in memory.items():
        shown = f"{activations / 1e6:.0f} MB of activations, {rest / 1e6:.1f} MB of gradients and optimizer state"
        print(f"{name}: {1e3 * statistics.median(seconds[name]):.0f} ms a step, {shown}")
    ratio = ratios(seconds["frozen"], seconds["everything"]).median
    print(f"frozen / everything: {ratio:.2f} of the time, the median of {count} pairs of steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
