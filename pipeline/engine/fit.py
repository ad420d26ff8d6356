"""The training loop: it yields what it measured and leaves every reaction to its caller."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from pipeline.engine import schedules
from pipeline.engine.state import Progress, Row, Sums, Tensors, TrainState
from pipeline.engine.update import Batch, Forward, gradient_norm, update
from pipeline.params.train import LoopSettings, ScheduleSettings
from pipeline.refusal import Refusal

REMEDY = "lower optimizer.learning_rate, or set train.clip_norm"
Validate = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Report:
    """After step number `step`: `metrics` where a report fell due, else nothing."""

    step: int
    metrics: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How long, how often and how fast; what is fixed before the first step."""

    settings: LoopSettings
    schedule: ScheduleSettings
    peak_learning_rate: float
    num_steps: int
    seed: int

    def learning_rate(self, step: int) -> float:
        return self.peak_learning_rate * schedules.factor(step, self.num_steps, self.schedule)

    def due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self.num_steps

    def finished(self, step: int, progress: Progress) -> bool:
        """At the last step, or after `patience` validations without an improvement."""
        patience = self.settings.patience
        return step >= self.num_steps or (patience is not None and progress.stale >= patience)


def fit(
    state: TrainState, progress: Progress, batches: Iterable[Batch], plan: Plan, *, forward: Forward, validate: Validate | None
) -> Iterator[Report]:
    """Train from `state.step` to the end, yielding after every step. The batches must begin at that step.

    Raises Refusal at the report that finds a number which is none.
    """
    settings = plan.settings
    stream = iter(batches)
    while not plan.finished(state.step, progress):
        learning_rate = plan.learning_rate(state.step)
        norm = update(
            state,
            next(stream),
            progress.sums,
            forward=forward,
            seed=plan.seed,
            learning_rate=learning_rate,
            label_smoothing=settings.label_smoothing,
            clip_norm=settings.clip_norm,
        )
        if not plan.due(state.step, settings.report_every_steps):
            yield Report(state.step)
            continue
        row: Row = {"step": state.step, "learning_rate": learning_rate, **measured(state, progress, norm)}
        if validate and plan.due(state.step, settings.validate_every_steps):
            row |= {f"valid/{name}": value for name, value in validate().items()}
            refuse_divergence(row, state.step)
            compare(progress, row, settings, state)
        progress.rows.append(row)
        yield Report(state.step, {name: value for name, value in row.items() if name != "step"})


def measured(state: TrainState, progress: Progress, norm: Tensor | None) -> Row:
    """The averages since the last report, whose sums begin anew, and the norm of the last gradient."""
    row = progress.sums.averages()
    progress.sums = Sums.zero(state.device)
    refuse_divergence(row, state.step)
    if "train/loss" not in row and state.scaler.get_scale() < 1:
        raise Refusal(
            f"every step before step {state.step} overflowed in fp16, however small the scale: {REMEDY}, or write `precision: fp32`"
        )
    gradient = float(gradient_norm(state) if norm is None else norm)
    return row | ({"train/gradient_norm": gradient} if math.isfinite(gradient) else {})


def refuse_divergence(row: Row, step: int) -> None:
    for name, value in row.items():
        if not math.isfinite(value):
            raise Refusal(f"{name} became {value} at or before step {step}: {REMEDY}")


def compare(progress: Progress, row: Row, settings: LoopSettings, state: TrainState) -> None:
    """Keep the weights of this validation if it is the best so far; the first of equals wins."""
    value = row[settings.metric]
    better = progress.best_value is None or (
        value > progress.best_value if settings.metric == "valid/accuracy" else value < progress.best_value
    )
    if not better:
        progress.stale += 1
        return
    progress.best_value, progress.best_step, progress.stale = value, state.step, 0
    if settings.keep == "best":
        progress.best = weights(state)


def weights(state: TrainState) -> Tensors:
    """A copy of what would be exported now."""
    return {name: tensor.detach().clone() for name, tensor in state.scored.network.state_dict().items()}
