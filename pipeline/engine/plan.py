"""The plan of a training, fixed before the first step: its length, its learning rates, and when to report and validate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.engine import schedules
from pipeline.engine.state import Progress
from pipeline.engine.update import StepSettings
from pipeline.params.loop import LoopSettings
from pipeline.params.schedule import ScheduleSettings
from pipeline.spec import Direction


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
        return self.peak_learning_rate * schedules.factor(step, self.num_steps, self.schedule)

    def step_settings(self, step: int) -> StepSettings:
        """Return the settings of the step that comes after `step` completed steps."""
        return StepSettings(
            seed=self.seed,
            learning_rate=self.learning_rate(step),
            clip_norm=self.settings.clip_norm,
            skip_nonfinite=self.settings.on_nonfinite == "skip",
            report=self.due(step + 1, self.settings.report_every_steps),
            whole=self.settings.compile == "graphs",
        )

    @property
    def measures_all(self) -> bool:
        """True if the gradient norm is measured at every step, not only at steps with a report."""
        settings = self.settings
        return settings.clip_norm is not None or settings.on_nonfinite == "skip" or settings.report_every_steps == 1

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
