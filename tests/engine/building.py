"""Trainings in memory, for tests of the loop: no file, no tracking."""

from pathlib import Path

import torch
from torch import nn

from pipeline.data.prepared import Prepared
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.classifier import Classifier
from pipeline.engine.fit import Report
from pipeline.engine.state import TrainState
from pipeline.engine.update import likeliest
from pipeline.params.train import TrainParams
from pipeline.runtime.machine import Machine
from pipeline.training import Training

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


class Parts:
    """A batch of given micro-batches, whatever size is asked for."""

    def __init__(self, *parts: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.given = parts

    @property
    def num_targets(self) -> int:
        return sum(likeliest(targets).numel() for _, targets in self.given)

    def parts(self, most: int):
        return iter(self.given)


class Identity(Classifier):
    """A classifier without the normalisation, so that inputs of any type can be fed."""

    def __init__(self, network: nn.Module) -> None:
        nn.Module.__init__(self)
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs)
