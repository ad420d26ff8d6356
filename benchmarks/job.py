"""The job of every training loop: the same samples, network, recipe and number of steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core import seeding
from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared, Split
from pipeline.core.spec import Spec
from pipeline.core.tokenizer_description import NUM_BYTES, NUM_SPECIAL, PAD, TokenizerDescription
from pipeline.inference.machine import Machine
from pipeline.inference.precision import ChosenPrecision, autocast, choose
from pipeline.inputs.image.description import ImageInputs
from pipeline.inputs.text.description import TextInputs
from pipeline.tasks.classification.targets import ClassTargets
from pipeline.tasks.language_modeling.targets import NextTokenTargets
from pipeline.train.engine import objective, optimizers
from pipeline.train.params import TrainParams

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
    "lstm": {
        "name": "recurrent",
        "weights": None,
        "cell": "lstm",
        "embedding_width": 64,
        "width": 64,
        "depth": 1,
        "bidirectional": True,
        "pooling": "mean",
        "tied_embeddings": False,
        "dropout": 0.0,
    },
    "transformer": {
        "name": "transformer",
        "weights": None,
        "width": 64,
        "depth": 2,
        "heads": 4,
        "mlp_ratio": 4.0,
        "activation": "gelu",
        "positions": "rotary",
        "pooling": None,
        "tied_embeddings": False,
        "dropout": 0.0,
    },
}
TEXT_MODELS = ("lstm", "transformer")
LENGTH = 32
"""Tokens of a text, whose shortest have one, and of a window of the language model."""
NUM_WORDS = 2_000
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
    "loss": {"name": "cross_entropy", "class_weights": "none", "label_smoothing": 0.0},
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
        "transforms": [],
    },
    "train": {
        "epochs": None,
        "lanes": 1,
        "sharding": "none",
        "precision": "auto",
        "compile": "off",
        "activation_checkpointing": False,
        "clip_norm": None,
        "on_nonfinite": "stop",
        "ema_decay": 0.0,
        "freeze": [],
        "export_weights": "last",
        "metrics": [],
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
        sections = {**RECIPE, "model": MODELS[self.model], "train": loop}
        if self.model in TEXT_MODELS:
            sections["augment"], loop["channels_last"] = None, False
        return from_data(sections, TrainParams, "the benchmark")

    def prepared(self) -> Prepared:
        """Return the samples of the model, which are identical on every machine."""
        synthetic = {"lstm": synthetic_texts, "transformer": synthetic_corpus}
        return synthetic.get(self.model, synthetic_images)()


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


def synthetic_texts() -> Prepared:
    """Return texts of every length for the LSTM. Some of their words tell the class; the others are random."""
    generator = seeding.generator(SEED, "texts")

    def texts(count: int) -> Split:
        targets = generator.integers(0, CLASSES, count)
        lengths = generator.integers(1, LENGTH + 1, count)
        words = generator.integers(NUM_SPECIAL, NUM_SPECIAL + NUM_WORDS, (count, LENGTH))
        words = np.where(generator.random((count, LENGTH)) < VISIBLE, NUM_SPECIAL + targets[:, None], words)
        return Split(np.where(np.arange(LENGTH) < lengths[:, None], words, PAD).astype(np.int32), targets, lengths)

    tokenizer = TokenizerDescription(kind="word", vocabulary=tuple(f"word{number}" for number in range(NUM_WORDS)))
    spec = Spec(inputs=TextInputs(length=LENGTH, tokenizer=tokenizer), targets=ClassTargets(classes=tuple(map(str, range(CLASSES)))))
    return Prepared(spec, "made by benchmarks/job.py", {"train": texts(NUM_TRAIN), "valid": texts(NUM_VALID)})


def synthetic_corpus() -> Prepared:
    """Return a sequence of bytes for the transformer, many of which are the byte before them plus one."""
    generator = seeding.generator(SEED, "corpus")

    def corpus(count: int) -> Split:
        steps = np.where(generator.random(count * LENGTH) < 0.5, 1, generator.integers(0, NUM_BYTES, count * LENGTH))
        tokens = (NUM_SPECIAL + np.cumsum(steps) % NUM_BYTES).astype(np.int32)
        return Split(tokens.reshape(count, LENGTH), np.zeros((count, 0), np.uint8), windows=True)

    spec = Spec(inputs=TextInputs(length=LENGTH, tokenizer=TokenizerDescription(kind="byte")), targets=NextTokenTargets())
    return Prepared(spec, "made by benchmarks/job.py", {"train": corpus(NUM_TRAIN), "valid": corpus(NUM_VALID)})


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
        if params.train.channels_last is True:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type stubs
        optimizer = optimizers.build(network, params.optimizer)
        precision = choose(params.train.precision, machine.device)
        if precision == "fp16":
            raise SystemExit(
                "the benchmark needs a CPU, or a GPU of compute capability 8.0 or newer: its bare loops do not scale the loss for fp16"
            )
        return cls(network, optimizer, machine.device, precision, params.train.channels_last is True)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            logits = self.network(inputs)
        return objective.summed(logits, targets) / targets.numel()

    def in_memory_format(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=torch.channels_last) if self.channels_last else inputs

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Make one optimizer step; return the loss, which stays on the device."""
        self.optimizer.zero_grad()
        loss = self.loss(inputs, targets)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()
