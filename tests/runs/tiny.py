"""A model small enough to be logged in a test."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.inference import model_file
from tests.specs import image_spec

SHAPE, CLASSES = (4, 4, 1), 3
SPEC = image_spec(shape=SHAPE, classes=("ant", "bee", "cat"), mean=(0.5,), std=(0.5,))
SETTINGS = {"name": "mlp", "weights": None, "width": 4, "depth": 1, "dropout": 0.0}


def write(path: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    return export(path, SETTINGS, MODELS.settings("mlp")(**SETTINGS).build(SPEC), SPEC)


def export(path: Path, settings: dict[str, Any], network: nn.Module, spec: Spec) -> Path:
    """Write the network with these settings to a model file."""
    params = {"model": settings, "train": {"deterministic": True, "channels_last": False}}
    manifest = model_file.Manifest(params=params, spec=spec, precision="fp32", step=1, inputs={}, fingerprint={})
    model_file.export(path, network.state_dict(), manifest)
    return path


def images(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size=(count, *SHAPE), dtype=np.uint8)
