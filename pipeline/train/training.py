"""Assembles a training from its parts: data, model, loop and checkpoints. A training can span several restarts of the process."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from pipeline.core import files
from pipeline.core.environment import Environment
from pipeline.core.prepared import Prepared
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.registry import Registry
from pipeline.core.spec import Spec
from pipeline.core.untrusted import reason, shown
from pipeline.inference import model_file, torch_errors
from pipeline.inference.batches import loader
from pipeline.inference.batches.blocks import WHOLE, BlockBatch, Share
from pipeline.inference.cuda_graphs import Graphs
from pipeline.inference.machine import Machine
from pipeline.inference.measuring import Measured, directions, positive_class, refuse_unfit
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import predict
from pipeline.inference.tensor_file import Tensors
from pipeline.train import history, loss_trial
from pipeline.train.augment import augmentation as augmentations
from pipeline.train.beginning import begin_state, compiled
from pipeline.train.engine import captured, fit, metrics
from pipeline.train.engine.checkpoint import MANIFEST, Checkpoints, Saver, is_finite
from pipeline.train.engine.objective import Objective
from pipeline.train.engine.plan import Plan
from pipeline.train.engine.state import MicroBatchChange, Progress, TrainState
from pipeline.train.engine.step import Step
from pipeline.train.group.processes import ALONE, Group
from pipeline.train.params import TrainParams

OBJECTIVES = Registry("pipeline.tasks", "task", "train", needs_torch=True)
Pause = Callable[[], object]
MOST_NAMED = 5
DIVERGED = 10
"""If the training loss exceeds this multiple of the loss of uniform guessing, one warning is printed; the training continues."""


@dataclass
class Training:
    """One training, from its start (with fresh weights or the newest checkpoint) to the exported weights."""

    params: TrainParams
    prepared: Prepared
    machine: Machine
    group: Group
    objective: Objective
    state: TrainState
    progress: Progress
    plan: Plan
    saver: Saver
    saved_s: float
    """`time.monotonic()` when the last save was due, or at the start of the training if none was due yet."""

    @classmethod
    def begin(
        cls,
        params: TrainParams,
        prepared: Prepared,
        machine: Machine,
        checkpoints: Checkpoints,
        *,
        micro_batch_changes: Sequence[MicroBatchChange] = (),
        group: Group = ALONE,
    ) -> "Training":
        """Return a training that continues from the newest checkpoint, or begins with fresh weights if there is no checkpoint.

        `micro_batch_changes` are for repeating an earlier training exactly: they are those that it made after running out of memory. The new
        training uses the same sizes from the same steps on. `group` are the processes that train together.

        Raises Refusal if the settings do not fit the data, the model or the machine, or if the checkpoint does not match this training.
        """
        settings, targets = params.train, prepared.spec.targets
        settings.refuse_missing_validation(prepared.splits)
        params.loss.refuse_missing_splits(prepared.splits)
        known = {**targets.metrics, **directions(settings.metrics)}
        settings.refuse_unknown_metric(known)
        if params.augment:
            augmentations.refuse_misfit(params.augment, prepared.spec)
        params.loss.refuse_misfit(targets)
        loss_trial.refuse_unfit(params, targets, prepared.spec.num_outputs, machine.device)
        weights = params.loss.weights(prepared.train.targets, prepared.spec.num_outputs)
        weights = None if weights is None else weights.to(machine.device)
        objective = OBJECTIVES.module(targets.kind).Objective(prepared.spec, params.loss, weights)
        state = begin_state(params, prepared, machine.device, group)
        plan = Plan(
            settings,
            params.schedule,
            params.optimizer.learning_rate,
            num_steps=settings.num_steps(len(prepared.train)),
            seed=params.seed,
            direction=known[settings.metric.removeprefix("valid/")],
            micro_batch_changes={change["step"]: change["micro_batch_size"] for change in micro_batch_changes},
        )
        progress = Progress(settings.micro_batch_size)
        training = cls(params, prepared, machine, group, objective, state, progress, plan, Saver(checkpoints), time.monotonic())
        training.resume()
        return training

    def resume(self) -> None:
        """Restore the newest intact checkpoint if there is one. Print from which step the training continues, if nothing will be
        validated, and if a batch is larger than the train split.

        Raises Refusal if the checkpoint does not match this training.
        """
        found = self.saver.checkpoints.newest()
        if found:
            self.restore(*found)
        begun = f"resuming after step {self.state.step}" if found else "from the beginning"
        unvalidated = "" if VALID in self.prepared.splits else "; no validation split: the last weights are exported"
        print(
            f"train: {self.params.model.title} on {self.machine.device} ({self.machine.name}) in {self.state.precision}: {counted(self.plan.num_steps, 'step')}, {begun}; "
            f"{self.train_split}{unvalidated}",
            flush=True,
        )
        if self.machine.device.type == "cuda":
            print(f"train: steps are {f'not captured: {self.why_eager}' if self.why_eager else 'captured as CUDA graphs'}", flush=True)
        settings, samples = self.params.train, len(self.prepared.train)
        if settings.epochs is not None and settings.batch_size > samples:
            print(
                f"train: each batch has samples of more than one epoch, because train.batch_size ({settings.batch_size}) is larger than "
                f"the train split ({counted(samples, 'sample')}): `train.epochs: {settings.epochs}` gives {counted(self.plan.num_steps, 'step')}",
                flush=True,
            )

    def restore(self, tensors: Tensors, scalars: Mapping[str, Any]) -> None:
        """Restore the state and the progress of a training from `tensors` and `scalars`, the contents of an intact checkpoint file.

        Raises Refusal if a value is missing or has another type or shape than this training needs. This happens if another program, or a
        training with another model, wrote the file.
        """
        folder = self.saver.checkpoints.folder
        try:
            self.state.restore(tensors, scalars["state"])
            self.progress.restore(tensors, scalars["progress"], self.machine.device)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and torch_errors.is_out_of_memory(error):
                raise
            raise Refusal(
                f"{folder}: the checkpoint does not match this model and optimizer ({reason(error)}): remove this folder of checkpoints to train from the beginning"
            ) from None
        self.saver.saved_step = self.state.step

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the history, the CSV file of all reported metrics."""
        targets = self.prepared.spec.targets
        further = self.params.train.metrics
        return history.columns(dict.fromkeys([*targets.metrics, *further]), targets.only_validated | set(further))

    @cached_property
    def train_split(self) -> loader.SplitTensors:
        """Return the train split as tensors, with the configured augmentation. Batches are made from these tensors."""
        settings, train = self.params.augment, self.prepared.train
        spec, seed, device = self.prepared.spec, self.params.seed, self.machine.device
        augmentation = augmentations.of(settings, spec, len(train), seed=seed, device=device) if settings else None
        return loader.SplitTensors(train, device, augmentation, num_sharing=self.group.local_size)

    def batches(self, start: int) -> Generator[BlockBatch]:
        """Yield this process's share of the batches of the train split endlessly, beginning with the batch of step `start + 1`."""
        return self.batches_of(self.state.lanes.share, start)

    def batches_of(self, share: Share, start: int) -> Generator[BlockBatch]:
        return loader.training(self.train_split, batch_size=self.params.train.batch_size, seed=self.params.seed, start=start, share=share)

    def reports(self, pause: Pause = lambda: None) -> Iterator[fit.Report]:
        """Run the training loop from the current step on, and yield a report after each step. Print a warning if steps are skipped or the
        loss is high.

        `pause()` is called after each batch of a validation, and may raise an exception to interrupt the validation. After a non-finite
        loss or gradient, the batch of the first such step since the last report is saved to a file. With fp16 no batch is saved, because
        such steps are normal.

        Raises Diverged, which is a Refusal, in these cases: the loss or gradient of a step is non-finite, `train.on_nonfinite` is not `skip`, and
        the precision is not fp16; a metric, a weight or an optimizer state is non-finite; too many steps in a row were skipped. With
        `train.on_nonfinite: finish`, the reports end instead, with a warning, if there was a validation. Raises
        Refusal if a step runs out of memory and cannot be retried. Raises ValueError if the objective reports a metric that is missing from `metrics` of the task's
        targets.
        """
        batches, step = self.batches(self.state.step), self.step()
        validate = self.validation(pause, step.graphs if self.machine.graphs == "on" else None)
        loop = fit.fit(self.state, self.progress, batches, self.plan, step=step, validate=validate)
        warned = False
        try:
            for report in loop:
                unknown = sorted(report.metrics.keys() - self.columns)
                if unknown:
                    raise ValueError(f"the objective reports {', '.join(unknown)}, which are missing from `metrics` of the task's targets")
                if report.step == 1:
                    self.name_unused()
                if report.bad_step:
                    print(f"warning: {self.describe_nonfinite(report.bad_step)}; the step was skipped", flush=True)
                if not warned and report.metrics.get("train/objective", 0.0) > DIVERGED * self.objective.chance_loss:
                    warned = True
                    print(f"warning: at step {report.step} the loss is far above the loss of uniform guessing: {fit.REMEDY}", flush=True)
                yield report
        except (fit.NotFinite, fit.Diverged) as error:
            diverged = self.diverged(error) if isinstance(error, fit.NotFinite) else error
            if self.params.train.on_nonfinite != "finish" or self.progress.best_step is None:
                raise diverged from None
            print(f"warning: {diverged}", flush=True)
            self.progress.ended_at = self.state.step
        finally:
            batches.close()  # this also ends the prefetch thread

    def name_unused(self) -> None:
        """After the first step, print which trained parameters have no gradient, if there are any."""
        named = self.state.model.network.named_parameters()
        unused = {name: tensor.numel() for name, tensor in named if tensor.requires_grad and tensor.grad is None}
        if unused:
            print(
                f"train: {counted(sum(unused.values()), 'weight', ',')} keep their initial values, because the loss does not depend on them: {listed([*unused], MOST_NAMED)}",
                flush=True,
            )

    def step(self) -> Step:
        """Return what computes the steps: operation by operation, or by CUDA graphs if nothing speaks against it."""
        mode = self.params.train.compile
        forward = self.state.lanes.wrap(compiled(self.state.model, mode, lanes=self.params.train.lanes))
        if self.why_eager:
            return Step(self.state, self.objective, forward)
        return captured.CapturedStep(self.state, self.objective, forward, records_network=mode != "graphs")

    @cached_property
    def why_eager(self) -> str | None:
        """Return why the steps that are left are not captured as CUDA graphs, which decides no result; None if they are.

        PIPELINE_GRAPHS may be `on`, which captures few steps, too, and the forward passes of validations (see `reports`).
        """
        requested, left = self.machine.graphs, self.plan.num_steps - self.state.step
        obstacles = {
            "there is no GPU": self.machine.device.type == "cpu",
            "PIPELINE_GRAPHS is off": requested == "off",
            f"fewer than {captured.FEWEST_STEPS} steps are left": requested == "auto" and left < captured.FEWEST_STEPS,
            "several processes exchange gradients": self.group.size > 1,
            "activations are computed again": self.params.train.activation_checkpointing,
        }
        return next((reason for reason, applies in obstacles.items() if applies), None)

    def diverged(self, error: fit.NotFinite) -> fit.Diverged:
        message = self.describe_nonfinite(error.step, or_before=error.or_before)
        return fit.Diverged(f"train.on_nonfinite: {message}: {error.remedy}, or write `train.on_nonfinite: skip`")

    def describe_nonfinite(self, step: int, *, or_before: bool = False) -> str:
        """Describe `step`, which has a non-finite loss or gradient, and save its batch to a file. Return the description.

        With `or_before`, an earlier step may be the cause, most likely the one before. Its batch is then saved and described, too.
        """
        message = f"step {step} has a non-finite loss or gradient, {self.group.once(partial(self.save_batch, step))}"
        if or_before:
            message += f"; or an earlier gradient was non-finite, most likely that of step {step - 1}, {self.group.once(partial(self.save_batch, step - 1))}"
            message += "; set `train.report_every_steps: 1` to find out which"
        return message

    def save_batch(self, step: int) -> str:
        """Save the whole batch of `step` in the folder of the checkpoints. Return a description: learning rate, samples and file."""
        batch, rate = next(self.batches_of(WHOLE, step - 1)), self.plan.learning_rate(step - 1)
        return history.save(
            batch, max_samples=self.progress.micro_batch_size, step=step, learning_rate=rate, folder=self.saver.checkpoints.folder
        )

    def exported(self) -> tuple[Tensors, int]:
        """Return the weights to export, and the step after which they were taken. All processes call this.

        If the weights of the best validation were kept, these are returned. Otherwise the current weights are returned.
        """
        best, best_step = self.progress.best, self.progress.best_step
        if best is None or best_step is None:
            best, best_step = self.state.weights(), self.state.step
        return self.whole(best), best_step

    def last_finite(self) -> tuple[Tensors, int]:
        """Return the weights to continue with after the training has diverged, and the step after which they were taken. All processes call
        this, once no checkpoint is being written. There are no weights in all processes but the first, and if no finite ones were kept.

        These are the weights of the best validation, if they were kept, or those of the newest checkpoint whose weights are all finite.
        """
        best, best_step = self.progress.best, self.progress.best_step
        if best is None or best_step is None:
            best, best_step = self.saver.checkpoints.finite_weights() if self.group.writes else ({}, 0)
        return self.whole(best if self.group.writes and is_finite(best) else {}), best_step

    def whole(self, weights: Tensors) -> Tensors:
        """Return the tensors of a model file with `weights`, which the method `weights` of the state has returned. All processes call this."""
        return self.params.model.merged(self.state.with_frozen(weights), self.prepared.spec)

    def manifest(self, step: int, inputs: Mapping[str, str], fingerprint: Mapping[str, Any]) -> Manifest:
        """Return the metadata of a model file with the weights after `step`. `inputs` are the digests of what decided them."""
        return Manifest(
            params=self.params.model_dump(mode="json"),
            spec=self.prepared.spec,
            precision=self.state.precision,
            channels_last=self.state.model.channels_last,
            step=step,
            switches=self.progress.micro_batch_changes,
            ended_at=self.progress.ended_at,
            inputs=dict(inputs),
            fingerprint=dict(fingerprint),
        )

    def decided(self, weights: Tensors) -> Spec:
        """Return the description of the data for the model file of `weights`: that of the prepared data, with what the loss decides.

        Only the first process calls this.
        """

        def validated() -> tuple[torch.Tensor, torch.Tensor]:
            model = model_file.rebuild(weights, self.manifest(0, {}, {}), Path("the exported weights")).to(self.machine.device)
            split = loader.SplitTensors(self.prepared.splits[VALID], self.machine.device)
            batches = loader.scoring(split, batch_size=min(self.params.train.micro_batch_size, len(split)))
            found = list(predict(model, batches, precision=self.state.precision, device=self.machine.device))
            return torch.cat([outputs for outputs, _ in found]), torch.cat([targets for _, targets in found if targets is not None])

        spec = self.prepared.spec
        return spec.model_copy(update={"targets": self.params.loss.decided(spec.targets, validated)})

    @cached_property
    def own_manifest(self) -> torch.Tensor:
        """Return the part of the manifest that every checkpoint has, as bytes: with it, a checkpoint can be the file of `model.weights`."""
        text = files.canonical(self.manifest(0, {}, {}).model_dump(mode="json"))
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def validation(self, pause: Pause, graphs: Graphs | None = None) -> fit.Validate | None:
        """Return a function that computes the metrics of the validation split, or None if there is no validation split.

        The function calls `pause()` after each batch. `graphs` are for the forward pass.
        """
        if VALID not in self.prepared.splits:
            return None
        split = loader.SplitTensors(self.prepared.splits[VALID], self.machine.device, num_sharing=self.group.local_size)
        batch_size = min(self.params.train.micro_batch_size, len(split))
        batches = partial(loader.scoring, split, batch_size=batch_size, share=self.state.lanes.share)
        named, spec = (*sorted(self.prepared.spec.targets.only_validated), *self.params.train.metrics), self.prepared.spec
        measured = partial(Measured, dict.fromkeys(named), spec, key="train.metrics", num_samples=len(split), batch_size=batch_size)
        others = loss_trial.among_others(self.params, spec.targets, spec.num_outputs)
        refuse_unfit(measured().metrics, spec.targets, "train.metrics", self.machine.device, others)  # before the first step
        if self.group.writes and (positive := positive_class(measured().metrics.values(), spec)) is not None:
            print(f"train: the positive class of train.metrics is {shown(positive, 60)}", flush=True)

        def validate() -> dict[str, float]:
            predictions = predict(self.state.scored, batches(), precision=self.state.precision, device=self.machine.device, graphs=graphs)
            return metrics.score(predictions, self.objective, group=self.group, measured=measured(), pause=pause)

        return validate

    def save_when_due(self, environment: Environment) -> None:
        """Start writing a checkpoint if one is due. All processes call this after each step, and write it after the same step.

        With the schedule `wsd`, one is due at the end of the constant rate, too. It is kept after the training, so that a longer one can begin there.
        """
        lasts = self.state.step == self.plan.plateau_end and bool(environment.checkpoint_every_s or environment.checkpoint_every_steps)
        if self.group.agreed(save=self.is_save_due(environment)) or lasts:
            self.save(lasts=lasts)

    def is_save_due(self, environment: Environment) -> bool:
        """Return True if the interval in steps or the interval in seconds has passed, and start the next interval in seconds.

        `environment` contains both intervals. If only the interval in seconds has passed, a checkpoint is due only when no other checkpoint
        is being written.
        """
        by_steps = environment.checkpoint_every_steps and self.state.step % environment.checkpoint_every_steps == 0
        by_time = environment.checkpoint_every_s and time.monotonic() - self.saved_s >= environment.checkpoint_every_s
        due = bool(by_steps or (by_time and not self.saver.busy))
        if due:
            self.saved_s = time.monotonic()
        return due

    def save(self, *, lasts: bool = False) -> None:
        """Start writing a checkpoint of the current state and progress in the background. All processes call this after the same step.

        If it `lasts`, a copy outlives the training.
        """
        scalars = {"state": self.state.scalars(), "progress": self.progress.scalars(), "frozen": self.state.has_frozen}
        self.saver.save(
            self.state.step, self.state.tensors() | self.progress.tensors() | {MANIFEST: self.own_manifest}, scalars, lasts=lasts
        )

    def save_now(self) -> bool:
        """Write a checkpoint, and wait until writing ends. Return True if the checkpoint is on disk, False after an OSError."""
        self.save()
        self.saver.wait()
        return self.saver.saved_step == self.state.step
