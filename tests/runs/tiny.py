"""A model small enough to be logged in a test."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from tests.specs import image_spec

SHAPE, CLASSES = (4, 4, 1), 3
SPEC = image_spec(shape=SHAPE, classes=("ant", "bee", "cat"), mean=(0.5,), std=(0.5,))


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(images.to(torch.float32).flatten(1) / 255)


def write(path: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    save_file(Tiny().state_dict(), path)
    return path


def build(path: Path) -> tuple[nn.Module, Spec]:
    module = Tiny()
    try:
        module.load_state_dict(load_file(path))
    except SafetensorError as error:
        raise Refusal(f"{path} is damaged") from error  # as for the models of the pipeline
    return module, SPEC


def images(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size=(count, *SHAPE), dtype=np.uint8)
