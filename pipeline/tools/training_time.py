"""How long a training takes: counted at the speed of a nominal CPU, and measured for a fifth of a second on this machine."""

import math
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any, NamedTuple

import numpy as np

from pipeline.core import refusal
from pipeline.core.environment import Environment
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared, Split
from pipeline.core.raw_dataset import TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.inference.machine import Machine, set_determinism
from pipeline.runs.terminal import count_forward
from pipeline.tools import tool
from pipeline.train.params import TrainParams

FLOPS, VALUES = 100e9, 0.6e9
"""The floating-point operations of a nominal CPU in a second, and the outputs of layers that it writes in a second."""
WEIGHTS, STEP_S = 1e9, 3e-3
"""The weights that it updates in a second, and the seconds that a step takes at least."""
BACKWARD = 2
"""A backward pass takes so many times as long as a forward pass."""
MEASURED_S, MEASURED_STEP_S, MOST_S = 0.2, 1.2, 3.0
FEWEST_STEPS = 2
SHORT_S = 5.0
"""A training that is counted shorter is not measured: it takes less than MINUTE_S on slow machines, too."""
MINUTE_S = 45.0


class StepTime(NamedTuple):
    """The seconds of a training step: those for each sample, and those beside them."""

    sample_s: float
    step_s: float

    def training_s(self, params: TrainParams, num_samples: Mapping[str, int]) -> float:
        """Return the seconds of a training with its validations. `num_samples` is the number of samples of each split."""
        settings = params.train
        num_steps = settings.num_steps(num_samples[TRAIN])
        validated = -(-num_steps // settings.validate_every_steps) * num_samples.get(VALID, 0)
        return num_steps * (self.step_s + settings.batch_size * self.sample_s) + validated * self.sample_s / (1 + BACKWARD)


def counted(params: TrainParams, spec: Spec) -> StepTime | None:
    """Return what a training costs on the nominal CPU: a function of model and data alone.

    Return None if it cannot be counted, because the model needs pretrained weights, or values that tensors on the device meta do not have.
    """
    forward = count_forward(params, spec)
    if forward is None:
        return None
    return StepTime((1 + BACKWARD) * (forward.flops / FLOPS + forward.num_outputs / VALUES), STEP_S + forward.num_weights / WEIGHTS)


def expected_s(params: TrainParams, spec: Spec, num_samples: Mapping[str, int], environment: Environment) -> float | None:
    """Return the seconds of a training on this machine: as counted if they are few, else as measured. Return None if they cannot be counted."""
    cost = counted(params, spec)
    if cost is None or (seconds := cost.training_s(params, num_samples)) < SHORT_S:
        return seconds if cost else None
    return measured(params, spec, cost, environment).training_s(params, num_samples)


def measured(params: TrainParams, spec: Spec, cost: StepTime, environment: Environment) -> StepTime:
    """Return what a training costs on this machine, measured for MEASURED_S seconds with random samples. `cost` is that of `counted`.

    A step of a large batch that may take long is measured with a part of the batch. Returns `cost` if the tool `profile` was deleted, or if
    the model cannot be built without its pretrained weights.
    """
    data, batch_size = params.model_dump(mode="json"), params.train.batch_size
    size = batch_size if params.train.lanes > 1 else min(batch_size, max(2, math.floor(MEASURED_STEP_S / cost.sample_s)))
    changes = {"batch_size": size, "micro_batch_size": min(params.train.micro_batch_size, size), "compile": "off"}
    model = data["model"] | ({"pretrained": None} if "pretrained" in data["model"] else {})  # random weights need no download
    try:
        trials = tool("profile.trial")
        machine = Machine.set_up(environment.model_copy(update={"local_world_size": 1}))
        set_determinism(params.train.deterministic, training=True)
        random_weights = from_data({**data, "model": model}, TrainParams, "params.yaml")
        trial = trials.Trial.of(random_weights, random_data(spec, 4 * size), machine, changes=changes)
        with redirect_stdout(StringIO()), trials.stepping(trial) as steps:  # a training on random samples may warn of its loss
            timed = partial(trials.time_block, partial(next, steps), 1, machine.device)
            took_s = min(durations_s(timed))  # other processes may delay a step many times over
    except Refusal:
        return cost
    step_s = cost.step_s if size < batch_size else took_s * cost.step_s / (cost.step_s + size * cost.sample_s)
    return StepTime(max(0.0, took_s - step_s) / size, step_s)


def durations_s(timed: Callable[[], float]) -> list[float]:
    """Return what `timed` returned in MEASURED_S seconds: the seconds of steps, after the first, which allocates memory.

    There are at least FEWEST_STEPS, unless these take MOST_S.
    """
    found: list[float] = []
    timed()
    while sum(found) < MEASURED_S or (len(found) < FEWEST_STEPS and sum(found) < MOST_S):
        found.append(timed())
    return found


def in_words(seconds: float) -> str:
    """Return a duration to the precision of an estimate, such as `about 7 minutes`."""
    if seconds < MINUTE_S:
        return "less than a minute"
    if seconds < 90 * 60:
        return f"about {refusal.counted(max(1, round(seconds / 60)), 'minute')}"
    return f"about {refusal.counted(round(seconds / 3600), 'hour')}"


def random_data(spec: Spec, count: int) -> Prepared:
    """Return data as `spec` describes them, with `count` random samples."""
    inputs: Any = spec.inputs.random_samples(count)
    targets = np.zeros((count, *spec.targets.row_shape), spec.targets.dtype)
    return Prepared(spec, "", {TRAIN: Split.of(spec, inputs, targets)})
