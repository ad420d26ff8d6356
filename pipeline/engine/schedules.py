"""Learning rates as pure functions of the step: nothing to save, nothing to get out of step."""

import math

from pipeline.params.schedule import ConstantSettings, FallingSettings, OneCycleSettings, ScheduleSettings


def factor(step: int, num_steps: int, schedule: ScheduleSettings) -> float:
    """What the peak learning rate is multiplied by at `step`, from 0, of `num_steps`."""
    warmup_steps = max(1.0, schedule.warmup * num_steps)
    rising = (step + 1) / warmup_steps if step + 1 < warmup_steps else 1.0
    # a training of one step is its own peak: a final factor of 0 would change nothing
    falling = max(0.0, step + 1 - warmup_steps) / (num_steps - warmup_steps) if num_steps > warmup_steps else 0.0
    match schedule:
        case ConstantSettings():
            return rising
        case FallingSettings(name="linear", final_factor=final):
            return rising if rising < 1 else 1.0 + (final - 1.0) * falling
        case FallingSettings(final_factor=final):
            return rising if rising < 1 else between(1.0, final, falling)
        case OneCycleSettings(start_factor=start, final_factor=final):
            return between(start, 1.0, step / (warmup_steps - 1)) if rising < 1 else between(1.0, final, falling)


def between(start: float, end: float, share: float) -> float:
    """Half a cosine from `start` at share 0 to `end` at share 1."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
