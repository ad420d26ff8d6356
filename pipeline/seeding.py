"""Randomness from its purpose: every draw is a function of the seed, what it is for, and a counter."""

import hashlib

import numpy as np


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, the same on every machine: `derive(seed, "order", epoch)`."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """NumPy's generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))
