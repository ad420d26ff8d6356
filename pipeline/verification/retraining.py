"""A training done again, from the parameters in a model file, in memory: nothing of the checkout is read over or written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.data.prepared import Prepared
from pipeline.engine import torch_errors
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.state import Switch
from pipeline.io.tensor_file import Tensors
from pipeline.params.train import TrainParams
from pipeline.progress import progress
from pipeline.runtime import machine
from pipeline.runtime.machine import Machine
from pipeline.training import Training


class Outcome(NamedTuple):
    weights: Tensors
    manifest: Mapping[str, Any]
    """What of the model file's manifest the training itself decides."""


def retrain(params: TrainParams, prepared: Prepared, here: Machine, empty: Path, *, switches: Sequence[Switch]) -> Outcome:
    """Train to the end, from the first step on, with the micro-batches that the first training came to.

    `empty` is a folder without checkpoints, and gets none.
    """
    machine.set_determinism(params.train.deterministic)
    training = Training.begin(params, prepared, here, Checkpoints(empty, kept=1), switches=switches)
    with progress("verify", training.plan.num_steps, "steps") as advance, torch_errors.in_words(size="train.micro_batch_size"):
        for _ in training.reports():
            advance()
    weights, step = training.exported()
    return Outcome(weights, {"step": step, "precision": training.state.used, "spec": prepared.spec, "switches": training.progress.switches})
