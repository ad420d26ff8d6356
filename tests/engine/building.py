"""Trainings in memory, for tests of the loop: no file, no tracking."""

from pathlib import Path

import torch
from torch import nn

from pipeline.batch import Batch
from pipeline.data.prepared import Prepared
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.fit import Report
from pipeline.engine.model import Model, preprocessing
from pipeline.engine.state import TrainState
from pipeline.params.loop import LoopSettings
from pipeline.params.train import TrainParams
from pipeline.runtime.machine import Machine
from pipeline.spec import Spec
from pipeline.tasks.classification.objective import Objective
from pipeline.training import Training
from tests.specs import image_spec

HERE = Machine(torch.device("cpu"), torch.get_num_threads())


def begin(params: TrainParams, prepared: Prepared, folder: Path = Path("/nonexistent")) -> Training:
    return Training.begin(params, prepared, HERE, Checkpoints(folder, kept=2))


def run(training: Training) -> list[Report]:
    return list(training.reports())


def weights(state: TrainState) -> dict[str, torch.Tensor]:
    return state.tensors()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Equal names and equal bits."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def model_of(network: nn.Module, spec: Spec, *, channels_last: bool = False, half: bool = False) -> Model:
    return Model(network, preprocessing(spec.inputs, channels_last=channels_last), half=half, channels_last=channels_last)


def objective_of(label_smoothing: float = 0.0, num_classes: int = 3) -> Objective:
    """Return the objective of a classification."""
    spec = image_spec(shape=(1, 1, 1), classes=tuple(map(str, range(num_classes))), mean=(0.5,), std=(0.5,))
    return Objective(spec, LoopSettings.model_construct(label_smoothing=label_smoothing))


class Parts:
    """A batch of given micro-batches, whatever size is asked for."""

    def __init__(self, *parts: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.given = parts

    @property
    def num_targets(self) -> int:
        return sum(len(targets) for _, targets in self.given)

    def num_parts(self, most: int) -> int:
        return len(self.given)

    def parts(self, most: int, lane: int = 0):
        return (Batch(*part) for part in self.given)


class Identity(Model):
    """A model without preprocessing, so that inputs of any type can be fed."""

    def __init__(self, network: nn.Module) -> None:
        nn.Module.__init__(self)
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs)
