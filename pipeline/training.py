"""The parts of one training, put together: data, model, loop and checkpoints."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from pipeline import seeding
from pipeline.collection import VALID
from pipeline.data import loader
from pipeline.data.augment import Augmentation
from pipeline.data.prepared import Prepared
from pipeline.engine import fit, precision, recompute, score
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.classifier import Classifier
from pipeline.engine.state import Progress, Sums, TrainState
from pipeline.environment import Environment
from pipeline.machine import Machine
from pipeline.params.train import TrainParams
from pipeline.refusal import Refusal

COMPILE_MODES = {"default": "default", "graphs": "reduce-overhead"}


@dataclass
class Training:
    """The parts of one training, put together."""

    params: TrainParams
    prepared: Prepared
    here: Machine
    state: TrainState
    progress: Progress
    plan: fit.Plan
    checkpoints: Checkpoints
    saved_s: float

    @classmethod
    def begin(cls, params: TrainParams, prepared: Prepared, here: Machine, checkpoints: Checkpoints) -> "Training":
        """Fresh weights by the seed, then the newest checkpoint over them where there is one."""
        settings = params.train
        refuse_missing_validation(params, prepared)
        used = precision.choose(settings.precision, here.device)
        seeding.reseed(torch.device("cpu"), params.seed, "weights")
        network = params.model.build(prepared.spec)
        params.model.prime(network)
        classifier = Classifier(network, prepared.spec, channels_last=settings.channels_last)
        state = TrainState.begin(classifier, params.optimizer, used=used, average_decay=settings.average_decay, device=here.device)
        if settings.activation_checkpointing and not recompute.recompute(classifier.network):
            raise Refusal(f"train.activation_checkpointing: the model {params.model.name} has no blocks to compute again: write `false`")
        num_steps = settings.num_steps(len(prepared.train))
        plan = fit.Plan(settings, params.schedule, params.optimizer.learning_rate, num_steps, params.seed)
        training = cls(params, prepared, here, state, Progress(Sums.zero(here.device)), plan, checkpoints, time.monotonic())
        training.resume()
        return training

    def resume(self) -> None:
        found = self.checkpoints.newest()
        if found:
            tensors, scalars = found
            self.state.restore(tensors, scalars["state"])
            self.progress.restore(tensors, scalars["progress"])
        begun = f"going on after step {self.state.step}" if found else "from the start"
        print(
            f"train: {self.params.model.name} on {self.here.device} ({self.here.name}) in {self.state.used}: {self.plan.num_steps} steps, {begun}"
        )

    def reports(self) -> Iterator[fit.Report]:
        """The loop over this training's own batches, from its current step."""
        settings, seed, device = self.params.train, self.params.seed, self.here.device
        augmentation = Augmentation(self.params.augment, self.prepared.spec, len(self.prepared.train), seed=seed)
        images = loader.Images(self.prepared.train, device, augmentation)
        batches = loader.training(
            images, batch_size=settings.batch_size, micro_batch_size=settings.micro_batch_size, seed=seed, start=self.state.step
        )
        forward = (
            self.state.classifier
            if settings.compile == "off"
            else torch.compile(self.state.classifier, mode=COMPILE_MODES[settings.compile])
        )
        return fit.fit(self.state, self.progress, batches, self.plan, forward=forward, validate=self.validation())

    def validation(self) -> fit.Validate | None:
        if VALID not in self.prepared.splits:
            return None
        images = loader.Images(self.prepared.splits[VALID], self.here.device)
        batches = partial(loader.scoring, images, batch_size=min(self.params.train.micro_batch_size, len(images)))
        return partial(score.score, self.state.scored, batches, used=self.state.used, device=self.here.device)

    def save_when_due(self, step: int, environment: Environment, *, force: bool) -> None:
        """Write a checkpoint as often as the environment asks for, and at once when `force`d."""
        by_steps = environment.checkpoint_every_steps and step % environment.checkpoint_every_steps == 0
        by_time = environment.checkpoint_every_s and time.monotonic() - self.saved_s >= environment.checkpoint_every_s
        if force or by_steps or by_time:
            scalars = {"state": self.state.scalars(), "progress": self.progress.scalars()}
            self.checkpoints.save(step, self.state.tensors() | self.progress.tensors(), scalars)
            self.saved_s = time.monotonic()


def refuse_missing_validation(params: TrainParams, prepared: Prepared) -> None:
    needs = {"train.keep: best": params.train.keep == "best", "train.patience": params.train.patience is not None}
    for setting, needed in needs.items():
        if needed and VALID not in prepared.splits:
            raise Refusal(f"{setting} needs a validation split: set source.valid above 0, or write `keep: last` and `patience: null`")
