"""Repeats a training from the parameters in a model file. Weights stay in memory; no file of the checkout is replaced."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.data.prepared import Prepared
from pipeline.engine import torch_errors
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.model_file import Manifest
from pipeline.engine.state import Switch
from pipeline.io.tensor_file import Tensors
from pipeline.params.load import from_data
from pipeline.params.train import TrainParams
from pipeline.progress import progress
from pipeline.runtime import machine
from pipeline.runtime.machine import Machine
from pipeline.training import Training


def train_params(manifest: Manifest) -> TrainParams:
    """Return the parameters of the training. Raises Refusal for those that this checkout cannot train with."""
    return from_data(manifest.params, TrainParams, "the model file")


class Outcome(NamedTuple):
    weights: Tensors
    manifest: Mapping[str, Any]
    """The manifest fields that the training determines: step, precision, spec and switches."""


def retrain(params: TrainParams, prepared: Prepared, here: Machine, empty: Path, *, switches: Sequence[Switch]) -> Outcome:
    """Train from the first step to the end, with the micro-batch switches of the original training.

    `empty` is an empty checkpoint folder; no checkpoint is written to it.
    """
    machine.set_determinism(params.train.deterministic)
    training = Training.begin(params, prepared, here, Checkpoints(empty, kept=1), switches=switches)
    with progress("verify", training.plan.num_steps, "steps") as advance, torch_errors.in_words(size="train.micro_batch_size"):
        for _ in training.reports():
            advance()
    weights, step = training.exported()
    return Outcome(
        weights, {"step": step, "precision": training.state.precision, "spec": prepared.spec, "switches": training.progress.switches}
    )
