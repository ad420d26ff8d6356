"""Learning-rate schedules as pure functions of the step. They have no state to save."""

import math

from pipeline.params.schedule import ConstantSettings, DecaySettings, OneCycleSettings, ScheduleSettings


def factor(step: int, num_steps: int, schedule: ScheduleSettings) -> float:
    """Return the learning rate at `step`, divided by the peak learning rate.

    `step` counts from 0 to `num_steps` - 1.
    """
    warmup_steps = max(1.0, schedule.warmup_ratio * num_steps)
    rising = (step + 1) / warmup_steps if step + 1 < warmup_steps else 1.0
    # if no step follows the warm-up, the last step uses the peak: with a final factor of 0, a training of one step would otherwise change nothing
    falling = max(0.0, step + 1 - warmup_steps) / (num_steps - warmup_steps) if num_steps > warmup_steps else 0.0
    match schedule:
        case ConstantSettings():
            return rising
        case DecaySettings(name="linear", final_factor=final):
            return rising if rising < 1 else 1.0 + (final - 1.0) * falling
        case DecaySettings(final_factor=final):
            return rising if rising < 1 else between(1.0, final, falling)
        case OneCycleSettings(start_factor=start, final_factor=final):
            return between(start, 1.0, step / (warmup_steps - 1)) if rising < 1 else between(1.0, final, falling)


def between(start: float, end: float, share: float) -> float:
    """Interpolate from `start` to `end` along half a cosine. `share` is the position between them, from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
