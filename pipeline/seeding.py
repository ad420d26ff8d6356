"""Randomness from its purpose: every draw is a function of the seed, what it is for, and a counter."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, the same on every machine: `derive(seed, "order", epoch)`."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """NumPy's generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))


def reseed(device: "torch.device", seed: int, *purpose: str | int) -> None:
    """Give torch's own generators, from which weights and dropout draw, the state of one purpose."""
    import torch  # late: prepare derives its splits without it

    number = derive(seed, *purpose)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)
