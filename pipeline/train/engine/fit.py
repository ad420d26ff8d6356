"""The training loop. It yields a Report after each step, and leaves printing, checkpoints and recovery to the caller."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from pipeline.core.refusal import Refusal
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.train.engine.metrics import Row, StepMetrics, StepValues
from pipeline.train.engine.plan import Plan
from pipeline.train.engine.state import Progress, TrainState
from pipeline.train.engine.step import Step
from pipeline.train.engine.update import update

CAUSE = "optimizer.learning_rate"
REMEDY = "lower optimizer.learning_rate, or set a lower train.clip_norm"
MOST_SKIPPED = 20
"""The number of skipped steps in a row that ends a training, because further steps would probably be skipped too."""
Validate = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Report:
    """The outcome of `step`, which is counted from 1. `metrics` is empty after a step without metrics to report."""

    step: int
    metrics: Row = field(default_factory=dict)
    bad_step: int | None = None
    """First step that was skipped for a non-finite loss or gradient since metrics were last reported, else None. Always None with fp16."""


class Diverged(Refusal):
    """Raised if a training cannot continue because its weights, its metrics or too many of its gradients are not finite."""


class NotFinite(Exception):
    """Raised if the loss or the gradient of `step` is not finite and `train.on_nonfinite` is not "skip".

    If `or_before` is True, an earlier step may be the cause. In this case, the gradient norm was measured only at steps with a report. A
    non-finite gradient at another step was not noticed, and may have made the weights non-finite.
    """

    def __init__(self, step: int, remedy: str, *, or_before: bool) -> None:
        super().__init__(f"step {step} has a non-finite loss or gradient")
        self.step, self.remedy, self.or_before = step, remedy, or_before


def fit(
    state: TrainState, progress: Progress, batches: Iterable[BlockBatch], plan: Plan, *, step: Step, validate: Validate | None
) -> Iterator[Report]:
    """Train until the plan is finished, and yield a Report after every step. Updates `state` and `progress` in place.

    `batches` must begin with the batch of step `state.step + 1`. `step` computes on the device. `validate()` returns the validation
    metrics by name; `validate` is None if there is no validation split.

    Exceptions from `validate` propagate. To continue after such an exception, call `fit` again with the same `state` and `progress`: it
    first repeats the interrupted validation.

    Raises NotFinite or Diverged at the first report that finds a non-finite value (see `report`). Raises Refusal if a step runs out of
    memory and cannot be retried with smaller micro-batches.
    """
    stream = iter(batches)
    while True:
        if plan.is_report_due(state.step, progress):
            yield report(state, progress, plan, step, validate)
        elif plan.finished(state.step, progress):
            return
        else:
            if state.step + 1 in plan.micro_batch_changes:
                progress.change_micro_batch(state.step + 1, plan.micro_batch_changes[state.step + 1])
            update(state, next(stream), progress, plan.step_settings(state.step), step)
            if not plan.is_report_due(state.step, progress):  # else the next turn yields the report, which an interruption can repeat
                yield Report(state.step)


def report(state: TrainState, progress: Progress, plan: Plan, step: Step, validate: Validate | None) -> Report:
    """Return a Report with the averages since the last report, and with the validation metrics if a validation is due.

    Adds the metrics to the history in `progress`, and starts new averages.

    Raises NotFinite if `train.on_nonfinite` is not "skip" and `first_bad_step` finds a step. Raises Diverged if a metric is not finite, or if
    too many steps in a row were skipped (see `refuse_endless_skipping`). If the gradient norm is not measured at every step, a
    report at which a validation is due also checks the weights and the optimizer states: it raises Diverged if one of them is not finite.
    """
    settings, values = plan.settings, progress.window.read_values()
    bad_step = first_bad_step(state, values)
    if bad_step and settings.on_nonfinite != "skip":
        is_first = bad_step == state.step - values.steps + 1
        raise NotFinite(bad_step, remedy(bad_step, step), or_before=not plan.measures_all and not is_first)
    skipped = values.skipped_at_end
    if skipped == values.steps:  # all since the last report, so those before it are of the same row
        skipped += progress.skipped_last
    refuse_endless_skipping(step, values, skipped, most=min(MOST_SKIPPED, plan.num_steps))
    row: Row = {
        "step": state.step,
        "learning_rate": plan.learning_rate(state.step - 1),
        **values.averages(progress.window.num_targets, step.objective),
    }
    due = plan.due(state.step, settings.validate_every_steps)
    if due and not plan.measures_all:
        refuse_nonfinite_state(state)
    if due and validate:
        row |= {f"valid/{name}": value for name, value in step.with_memory(validate).items()}
    for name, value in row.items():
        if not math.isfinite(value):
            raise Diverged(f"{CAUSE}: {name} became {value} at or before step {state.step}: {REMEDY}")
    if due and validate:
        update_best(progress, row, plan, step)
    progress.window, progress.skipped_last = StepMetrics(), skipped
    progress.rows.append(row)
    return Report(state.step, {name: value for name, value in row.items() if name != "step"}, bad_step)


def first_bad_step(state: TrainState, values: StepValues) -> int | None:
    """Return the first step since the last report with a non-finite loss or gradient, or None if there is no such step.

    Always returns None with fp16. Occasional overflows are normal there, because the gradient scaler uses them to adjust the loss
    scale.
    """
    if state.scaler.is_enabled():
        return None
    if state.skip_nonfinite:
        bad = [bool(skipped) for skipped in values.skipped]
    else:
        bad = [not math.isfinite(loss + norm) for loss, norm in zip(values.loss, values.norm, strict=True)]
    return state.step - values.steps + bad.index(True) + 1 if any(bad) else None


def remedy(bad_step: int, step: Step) -> str:
    """Return what to change after a non-finite loss or gradient in `bad_step`. In the first step, no learning rate is the cause."""
    if bad_step > 1 or not step.begun_finite or step.state.lanes.share.count > 1:  # after a restart, or of several processes, not known
        return REMEDY
    outputs, loss = torch.stack(step.begun_finite).all(0).tolist()
    if not outputs:
        return "with the initial weights, before any update, outputs are not finite: correct the model or the inputs"
    if not loss:
        return "with the initial weights, before any update, the outputs are finite, but the loss is not: correct the loss or the targets"
    return "with the initial weights, before any update, outputs and loss are finite, but a gradient is not: correct the model or the loss"


def refuse_nonfinite_state(state: TrainState) -> None:
    """Raise Diverged if any weight or optimizer state is not finite.

    The loss can be finite nevertheless. A ReLU can hide an infinite weight. If Adam's average of squared gradients is infinite, the
    affected weight no longer changes.
    """
    kept = [tensor for held in state.optimizer.state.values() for tensor in held.values() if isinstance(tensor, torch.Tensor)]
    with torch.no_grad():
        largest = float(state.lanes.norm([*state.parameters, *kept], math.inf))
    if not math.isfinite(largest):
        raise Diverged(
            f"{CAUSE}: a weight or an optimizer state became {largest} at or before step {state.step}: {REMEDY}; "
            "set `train.report_every_steps: 1` to find the exact step"
        )


def refuse_endless_skipping(step: Step, values: StepValues, skipped: int, *, most: int) -> None:
    """Raise Diverged if the last `most` steps were skipped. `skipped` is the number of steps in a row that were skipped up to the present one.

    With fp16, raise Diverged instead if every step since the last report was skipped and the loss scale is below 1. At larger scales, the
    gradient scaler may still find a scale without overflow.
    """
    state = step.state
    if not state.scaler.is_enabled():
        if skipped >= most:
            first = state.step - skipped + 1
            way_out = remedy(first, step)
            key = CAUSE if way_out == REMEDY else "train.on_nonfinite"
            raise Diverged(f"{key}: every step from {first} to {state.step} had a non-finite loss or gradient: {way_out}")
    elif values.skipped_at_end == values.steps and state.scaler.get_scale() < 1:
        raise Diverged(
            f"train.precision: fp16 gradients overflowed up to step {state.step}, and the loss scale fell below 1: {REMEDY}, or write `train.precision: fp32`"
        )


def update_best(progress: Progress, row: Row, plan: Plan, step: Step) -> None:
    """Compare the validation in `row` with the best validation so far, by the metric `train.metric`.

    A strictly better value is recorded in `progress` as the best. Otherwise `progress.stale` grows by 1. If `train.export_weights` is
    `best`, a better value also makes a copy of the current weights.
    """
    value = row.get(plan.settings.metric)  # missing if the samples do not determine the metric
    best = progress.best_value
    if value is None or (best is not None and not (value > best if plan.direction == "max" else value < best)):
        progress.stale += 1
        return
    progress.best_value, progress.best_step, progress.stale = value, step.state.step, 0
    if plan.settings.export_weights == "best":
        progress.best = step.with_memory(step.state.weights)
