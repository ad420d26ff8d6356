"""The parts of one training, put together: data, model, loop and checkpoints."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from pipeline import seeding
from pipeline.collection import VALID
from pipeline.data import loader
from pipeline.data.augment import Augmentation
from pipeline.data.prepared import Prepared
from pipeline.engine import fit, precision, recompute, score
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.classifier import Classifier
from pipeline.engine.state import Progress, Sums, Tensors, TrainState
from pipeline.engine.update import Forward
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
        settings.refuse_missing_validation(prepared.splits)
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
        augmentation = Augmentation(self.params.augment, self.prepared.spec, len(self.prepared.train), seed=seed, device=device)
        images = loader.Images(self.prepared.train, device, augmentation)
        batches = loader.training(
            images, batch_size=settings.batch_size, micro_batch_size=settings.micro_batch_size, seed=seed, start=self.state.step
        )
        forward = compiled(self.state.classifier, settings.compile)
        return fit.fit(self.state, self.progress, batches, self.plan, forward=forward, validate=self.validation())

    def exported(self) -> tuple[Tensors, int]:
        """The weights to keep, and the step after which they were taken: the best ones where they were kept, else the last."""
        best, best_step = self.progress.best, self.progress.best_step
        if best is not None and best_step is not None:
            return best, best_step
        return fit.weights(self.state), self.state.step

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


def compiled(classifier: Classifier, wish: str) -> Forward:
    return classifier if wish == "off" else cast("Forward", torch.compile(classifier, mode=COMPILE_MODES[wish]))
