"""Trainings in memory, for tests of the loop: no file, no tracking. `TEST_DEVICE=cuda` runs them on a GPU."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from pipeline.core.environment import Environment
from pipeline.core.prepared import Prepared
from pipeline.core.spec import Spec
from pipeline.inference.batch import Batch
from pipeline.inference.machine import Machine, set_determinism
from pipeline.inference.networks import Model, preprocessing
from pipeline.losses.cross_entropy import Settings as CrossEntropy
from pipeline.tasks.classification.train import Objective
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.engine.fit import Report
from pipeline.train.engine.state import TrainState
from pipeline.train.group.lanes import ONE_LANE, Lanes
from pipeline.train.group.processes import ALONE
from pipeline.train.optimizer_params import AdamSettings, MuonSettings, SgdSettings
from pipeline.train.params import TrainParams
from pipeline.train.training import Training
from tests.specs import image_spec

HERE = Machine.set_up(Environment(PIPELINE_DEVICE=os.environ.get("TEST_DEVICE", "cpu"), PIPELINE_THREADS=torch.get_num_threads()))

COMMON: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.05, "bias_lr_scale": 1.0, "layer_decay": None, "groups": ()}
SGD = SgdSettings(name="sgd", **COMMON, momentum=0.9, nesterov=True)
ADAMW = AdamSettings(name="adamw", **COMMON, beta1=0.9, beta2=0.99, epsilon=1e-8)
MUON = MuonSettings(
    name="muon",
    **COMMON | {"bias_lr_scale": 2.0},
    outer_lr_scale=3.0,
    momentum=0.6,
    sgd_momentum=0.85,
    nesterov=True,
    ns_steps=5,
    normalize_weights=True,
)


def steps(count: int, every: int | None = None) -> dict[str, Any]:
    """Return the changes for a training of `count` steps that reports and validates after each `every` of them, or only at the end."""
    every = every or count
    return {"train.epochs": None, "train.steps": count, "train.report_every_steps": every, "train.validate_every_steps": every}


def begin(params: TrainParams, prepared: Prepared, folder: Path = Path("/nonexistent")) -> Training:
    if HERE.device.type == "cuda":
        set_determinism(params.train.deterministic)
    return Training.begin(params, prepared, HERE, Checkpoints(folder, kept=2))


def run(training: Training) -> list[Report]:
    return list(training.reports())


def stop(training: Training, step: int) -> None:
    """Train to the report of a step, and save there."""
    for report in training.reports():
        if report.step == step:
            break
    assert training.save_now()


@contextmanager
def group_of_one(backend: str, device: torch.device | None = None) -> Iterator[None]:
    """Make this process the only one of a process group."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    try:
        yield
    finally:
        dist.destroy_process_group()


def exchanging(training: Training) -> Training:
    """Let `training` exchange its gradients with the process group, although it has only one process."""
    state = training.state
    if state.lanes is ONE_LANE:
        state.lanes = Lanes(ALONE)
        state.lanes.begin(state.model.network, state.buffers)
    found = state.lanes
    assert isinstance(found, Lanes)
    wrap = found.wrap

    def wrapped(forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        found.group = replace(ALONE, size=2)  # with one, `wrap` does nothing
        result = wrap(forward)
        found.group = ALONE
        return result

    found.wrap = wrapped  # type: ignore[method-assign]
    return training


def weights(state: TrainState) -> dict[str, torch.Tensor]:
    return state.tensors()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Equal names and equal bits."""
    return first.keys() == second.keys() and all(torch.equal(first[name].cpu(), second[name].cpu()) for name in first)


def model_of(network: nn.Module, spec: Spec, *, channels_last: bool = False, bf16_weights: bool = False) -> Model:
    return Model(network, preprocessing(spec.inputs, channels_last=channels_last), bf16_weights=bf16_weights, channels_last=channels_last)


def objective_of(label_smoothing: float = 0.0, num_classes: int = 3) -> Objective:
    """Return the objective of a classification."""
    spec = image_spec(shape=(1, 1, 1), classes=tuple(map(str, range(num_classes))), mean=(0.5,), std=(0.5,))
    return Objective(spec, CrossEntropy(name="cross_entropy", class_weights="none", label_smoothing=label_smoothing))


class Parts:
    """A batch of given micro-batches, whatever size is asked for."""

    def __init__(self, *parts: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.given = parts

    @property
    def num_targets(self) -> int:
        return sum(len(targets) for _, targets in self.given)

    @property
    def lane_size(self) -> int:
        return self.num_targets

    def num_parts(self, max_size: int) -> int:
        return len(self.given)

    def parts(self, max_size: int, lane: int = 0):
        return (Batch(*part) for part in self.given)


class Identity(Model):
    """A model without preprocessing, so that inputs of any type can be fed."""

    def __init__(self, network: nn.Module) -> None:
        nn.Module.__init__(self)
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs)
