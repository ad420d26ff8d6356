"""The plan of a training, fixed before the first step: its length, its learning rates by pure functions of the step, and when to report and validate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.core.spec import Direction
from pipeline.train.engine.state import Progress
from pipeline.train.engine.step import StepSettings
from pipeline.train.optimizer_params import ConstantSettings, DecaySettings, OneCycleSettings, ScheduleSettings, WsdSettings
from pipeline.train.params import LoopSettings


def factor(step: int, num_steps: int, schedule: ScheduleSettings) -> float:
    """Return the learning rate at `step`, divided by the peak learning rate.

    `step` counts from 0 to `num_steps` - 1.
    """
    if isinstance(schedule, WsdSettings):
        decay_steps, steps_left = schedule.decay_steps(num_steps), num_steps - (step + 1)
        falling = max(0, decay_steps - steps_left) / max(1, decay_steps)
        return min(1.0, (step + 1) / max(1, schedule.warmup_steps), 1.0 + (schedule.final_factor - 1.0) * falling)
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


def same_until(step: int, lengths: Sequence[int], schedule: ScheduleSettings, *, validate_every_steps: int) -> bool:
    """Return True if trainings of these lengths, which differ in nothing else, are the same up to `step`.

    A training always validates after its last step. A longer one does so after the same step only if a validation is due there anyway.
    """
    if any(step > length or (step == length and length % validate_every_steps) for length in lengths):
        return False
    return all(len({factor(each, length, schedule) for length in lengths}) == 1 for each in range(step))


def between(start: float, end: float, share: float) -> float:
    """Interpolate from `start` to `end` along half a cosine. `share` is the position between them, from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class Plan:
    """The settings of a training that are fixed before its first step: its length, learning rates, reports and validations.

    `micro_batch_changes` maps a step to the micro-batch size that is used from this step on. It is empty, except if a recorded training is repeated:
    its changes of the micro-batch size, which it made when it ran out of memory, are then made at the same steps.
    """

    settings: LoopSettings
    schedule: ScheduleSettings
    peak_learning_rate: float
    num_steps: int
    seed: int
    direction: Direction
    """"max" if a larger value of `train.metric` is better, "min" if a smaller value is better."""
    micro_batch_changes: Mapping[int, int] = field(default_factory=dict)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the step that comes after `step` completed steps."""
        return self.peak_learning_rate * factor(step, self.num_steps, self.schedule)

    @property
    def plateau_end(self) -> int | None:
        """The step after which the learning rate of `wsd` depends on the length of the training; None with other schedules."""
        return self.num_steps - self.schedule.decay_steps(self.num_steps) if isinstance(self.schedule, WsdSettings) else None

    def step_settings(self, step: int) -> StepSettings:
        """Return the settings of the step that comes after `step` completed steps."""
        return StepSettings(
            seed=self.seed,
            learning_rate=self.learning_rate(step),
            clip_norm=self.settings.clip_norm,
            measures_norm=self.measures_all or self.due(step + 1, self.settings.report_every_steps),
            may_split=self.settings.compile != "graphs",
        )

    @property
    def measures_all(self) -> bool:
        """True if the gradient norm is measured at every step, not only at steps with a report."""
        return self.settings.clip_norm is not None or self.settings.report_every_steps == 1

    def due(self, step: int, every: int) -> bool:
        """Return True if `step` is a multiple of `every`, or the last step of the training."""
        return step % every == 0 or step == self.num_steps

    def is_report_due(self, step: int, progress: Progress) -> bool:
        """Return True if a report is due after `step` and has not been made yet.

        If a validation is interrupted, its report is not made and stays due.
        """
        return step > progress.reported_step and self.due(step, self.settings.report_every_steps)

    def finished(self, step: int, progress: Progress) -> bool:
        """Return True if `step` is the last step, or if the last `train.patience` validations brought no improvement."""
        patience = self.settings.patience
        return step >= self.num_steps or (patience is not None and progress.stale >= patience)
