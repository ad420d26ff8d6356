"""The job of every training loop: the same images, network, recipe and number of steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import cross_entropy, seeding
from pipeline.data.prepared import Prepared, Split
from pipeline.engine import optimizers
from pipeline.engine.precision import ChosenPrecision, autocast, choose
from pipeline.inputs.image.description import ImageInputs
from pipeline.params.load import from_data
from pipeline.params.train import TrainParams
from pipeline.runtime.machine import Machine
from pipeline.spec import Spec
from pipeline.tasks.classification.targets import ClassTargets

SEED = 1
CROP = 4
SIDE, CLASSES = 32, 10
NUM_TRAIN, NUM_VALID = 20_000, 500
VISIBLE = 0.06
"""Share of the class colour in an image; the rest is noise. It is small so that the loss falls slowly and omitted steps show in it."""
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp", "weights": None, "width": 256, "depth": 2, "dropout": 0.0},
    "convnet": {"name": "convnet", "weights": None, "width": 16, "dropout": 0.0},
    "mobilenet_v3_small": {
        "name": "torchvision",
        "weights": None,
        "architecture": "mobilenet_v3_small",
        "stem": "small",
        "pretrained": None,
    },
    "resnet": {"name": "resnet", "weights": None, "depth": 9, "width": 16},
}
RECIPE: dict[str, Any] = {
    "seed": SEED,
    "optimizer": {
        "name": "sgd",
        "learning_rate": 0.02,
        "weight_decay": 5e-4,
        "bias_lr_scale": 1.0,
        "layer_decay": None,
        "groups": [],
        "momentum": 0.9,
        "nesterov": True,
    },
    "schedule": {"name": "constant", "warmup_ratio": 0.0},
    "augment": {
        "crop_padding": CROP,
        "resized_crop": 0.0,
        "flip": "random",
        "brightness": 0.0,
        "contrast": 0.0,
        "saturation": 0.0,
        "cutout": 0,
        "mixup": 0.0,
        "cutmix": 0.0,
    },
    "train": {
        "epochs": None,
        "precision": "auto",
        "compile": "off",
        "activation_checkpointing": False,
        "label_smoothing": 0.0,
        "clip_norm": None,
        "on_nonfinite": "stop",
        "ema_decay": 0.0,
        "freeze": [],
        "export_weights": "last",
        "metric": "valid/accuracy",
        "patience": None,
    },
}


@dataclass(frozen=True)
class Job:
    model: str
    folder: Path
    """The folder in which the loop may write."""
    batch_size: int
    warmup_steps: int
    block_steps: int
    rounds: int
    workers: int
    """Number of worker processes, for the loops whose DataLoader has any."""

    @property
    def steps(self) -> int:
        return self.warmup_steps + self.rounds * self.block_steps

    def params(self, *, deterministic: bool = True) -> TrainParams:
        """Return the pipeline's parameters. They have one step more than is timed, because the last step includes a validation."""
        loop = {
            **RECIPE["train"],
            "steps": self.steps + 1,
            "batch_size": self.batch_size,
            "micro_batch_size": self.batch_size,
            "deterministic": deterministic,
            "channels_last": torch.cuda.is_available(),
            "report_every_steps": 10,
            "validate_every_steps": 10 * self.steps,
        }
        return from_data({**RECIPE, "model": MODELS[self.model], "train": loop}, TrainParams, "the benchmark")


def synthetic_images() -> Prepared:
    """Return synthetic images of the shape of CIFAR-10, identical on every machine: noise plus a colour per class, which no crop or flip
    hides.
    """
    generator = seeding.generator(SEED, "images")
    colours = generator.integers(0, 256, (CLASSES, 1, 1, 3))
    splits = {name: split(generator, colours, count) for name, count in (("train", NUM_TRAIN), ("valid", NUM_VALID))}
    inputs = ImageInputs(height=SIDE, width=SIDE, channels=3, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    targets = ClassTargets(classes=tuple(map(str, range(CLASSES))))
    return Prepared(Spec(inputs=inputs, targets=targets), "made by benchmarks/job.py", splits)


def split(generator: np.random.Generator, colours: np.ndarray[Any, Any], count: int) -> Split:
    targets = generator.integers(0, len(colours), count)
    noise = generator.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    inputs = np.empty_like(noise)
    for first in range(0, count, 1000):
        rows = slice(first, first + 1000)
        inputs[rows] = VISIBLE * colours[targets[rows]] + (1 - VISIBLE) * noise[rows]
    return Split(inputs, targets)


@dataclass
class BareTraining:
    """Network, optimizer and loss on the device, for all loops except the pipeline's."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    precision: ChosenPrecision
    channels_last: bool

    @classmethod
    def begin(cls, job: Job, prepared: Prepared, machine: Machine) -> "BareTraining":
        params = job.params()
        seeding.reseed(torch.device("cpu"), SEED, "weights")
        network = params.model.build(prepared.spec).to(machine.device).train()
        if params.train.channels_last:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type stubs
        optimizer = optimizers.build(network, params.optimizer)
        precision = choose(params.train.precision, machine.device)
        if precision == "fp16":
            raise SystemExit(
                "the benchmark needs a CPU, or a GPU of compute capability 8.0 or newer: its bare loops do not scale the loss for fp16"
            )
        return cls(network, optimizer, machine.device, precision, params.train.channels_last)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            logits = self.network(images)
        return cross_entropy.summed(logits, targets) / targets.numel()

    def in_memory_format(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

    def step(self, images: Tensor, targets: Tensor) -> Tensor:
        """Make one optimizer step; return the loss, which stays on the device."""
        self.optimizer.zero_grad()
        loss = self.loss(images, targets)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()
