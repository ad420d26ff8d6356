"""A model small enough to be logged in a test, and a mirror that knows how to build it."""

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

SHAPE, CLASSES = (4, 4, 1), 3
MIRROR = """
import sys
from pathlib import Path
from pipeline.environment import Environment
from pipeline.tracking.mirror import mirror

def build(path):
    from tests.tracking import tiny
    return tiny.build(path)

sys.exit(mirror(Path(sys.argv[1]), Environment.read(), build))
"""


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


def build(path: Path) -> tuple[nn.Module, NDArray[np.uint8]]:
    module = Tiny()
    module.load_state_dict(load_file(path))
    return module, images(2)


def images(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size=(count, *SHAPE), dtype=np.uint8)


def command(folder: Path) -> list[str]:
    """In place of `python -m pipeline mirror`: the same mirror, for tiny models."""
    return [sys.executable, "-c", MIRROR, str(folder)]
