"""Model files of every architecture, without a training."""

from pathlib import Path
from typing import Any

import torch

from pipeline.core import seeding
from pipeline.core.registry import MODELS
from pipeline.core.spec import Targets
from pipeline.inference import model_file
from pipeline.inference.model_file import Manifest
from pipeline.inference.networks import Model
from tests.specs import image_spec
from tests.train.engine.building import model_of

CPU = torch.device("cpu")
MLP = {"name": "mlp", "weights": None, "width": 8, "depth": 2, "dropout": 0.1}
RESNET = {"name": "resnet", "weights": None, "depth": 9, "width": 8}
WIDTHS = {"block1_width": 8, "block2_width": 16, "block3_width": 16}
AIRBENCH = {"name": "airbench", "weights": None, **WIDTHS, "whiten_images": 20, "whiten_eps": 5e-4}
MOBILENET = {"name": "torchvision", "architecture": "mobilenet_v3_small", "stem": "small", "weights": None, "pretrained": None}
CLASSES = ("cat", "dog", "eel")


def write(
    path: Path,
    settings: dict[str, Any],
    *,
    shape: tuple[int, int, int] = (8, 8, 3),
    bf16_weights: bool = False,
    channels_last: bool = False,
    targets: Targets | None = None,
) -> Path:
    """Write a model file with random weights, and BatchNorm statistics of random images. `targets` are three classes unless given."""
    spec = image_spec(shape=shape, classes=CLASSES, mean=(0.4,) * shape[2], std=(0.3,) * shape[2])
    spec = spec if targets is None else spec.model_copy(update={"targets": targets})
    seeding.reseed(CPU, 1, "weights")
    model = model_of(
        MODELS.settings(settings["name"])(**settings).build(spec), spec, bf16_weights=bf16_weights, channels_last=channels_last
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)  # the last layer of some is zero at first
        for _ in range(3):
            model(torch.from_numpy(spec.inputs.random_samples(8)))
    params = {"model": settings, "train": {"deterministic": True, "channels_last": channels_last}}
    manifest = Manifest(params=params, spec=spec, precision="bf16-true" if bf16_weights else "fp32", step=3, inputs={}, fingerprint={})
    model_file.export(path, model.network.state_dict(), manifest)
    return path


def in_float32(path: Path) -> Model:
    """Return the model of a file, computing in float32."""
    model, _ = model_file.load(path)
    model.bf16_weights = False
    return model.float()
