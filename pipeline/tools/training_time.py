"""How long a training takes on a nominal CPU: counted from the model and the data alone, so the answer is the same on every machine."""

from collections.abc import Mapping

from pipeline.core.raw_dataset import TRAIN, VALID
from pipeline.core.refusal import counted
from pipeline.core.spec import Spec
from pipeline.runs import model_size
from pipeline.train.params import TrainParams

FLOPS, VALUES = 100e9, 0.6e9
"""The floating-point operations of a nominal CPU in a second, and the outputs of layers that it writes in a second."""
WEIGHTS, STEP_S = 1e9, 3e-3
"""The weights that it updates in a second, and the seconds that a step takes at least."""
BACKWARD = 2
"""A backward pass takes so many times as long as a forward pass."""


def expected_s(params: TrainParams, spec: Spec, num_samples: Mapping[str, int]) -> float | None:
    """Return the seconds of a training with its validations on the nominal CPU. `num_samples` is the number of samples of each split.

    Return None if they cannot be counted, because the model needs values that tensors on the device meta do not have.
    """
    forward = model_size.count_forward(params, spec)
    if forward is None:
        return None
    forward_s = forward.flops / FLOPS + forward.num_outputs / VALUES
    settings = params.train
    num_steps = settings.num_steps(num_samples[TRAIN])
    step_s = STEP_S + forward.num_weights / WEIGHTS + settings.batch_size * (1 + BACKWARD) * forward_s
    num_validated = -(-num_steps // settings.validate_every_steps) * num_samples.get(VALID, 0)
    return num_steps * step_s + num_validated * forward_s


def in_words(seconds: float) -> str:
    """Return a duration to the precision of an estimate, such as `about 7 minutes`."""
    if seconds < 45:
        return "less than a minute"
    if seconds < 90 * 60:
        return f"about {counted(max(1, round(seconds / 60)), 'minute')}"
    return f"about {counted(round(seconds / 3600), 'hour')}"
