"""Randomness without state: every random number is a function of the seed, a purpose and a counter."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, such as the order of the samples in an epoch: `derive(seed, "order", epoch)`.

    Equal arguments give an equal result on every machine.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a NumPy generator for one purpose, such as `generator(seed, "flip", epoch)`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))


def reseed(device: "torch.device", seed: int, *purpose: str | int) -> None:
    """Seed torch's default generators of the CPU and of `device` for one purpose.

    Weight initialisation and dropout draw from these generators.
    """
    import torch  # imported late: the prepare stage derives its splits without torch

    number = derive(seed, *purpose)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


def reseed_host(seed: int, *purpose: str | int) -> None:
    """Seed the default generators of torch on the CPU, of Python and of NumPy, from which the `build` of a model may draw."""
    import torch

    number = derive(seed, *purpose)
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


@contextmanager
def restored_host() -> Iterator[None]:
    """Restore the generators that `reseed_host` seeds at the end of the block."""
    import torch

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
