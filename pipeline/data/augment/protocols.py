"""The interfaces of augmentations. Each draws a table of random integers for an epoch, and later changes images by them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Table = NDArray[np.int64]


class RandomSource(Protocol):
    """`generator_for("flip", epoch)` returns a generator for one purpose, so that enabling one augmentation does not change the draws of another."""

    def __call__(self, *purpose: str | int) -> np.random.Generator: ...


class Augmenter(Protocol):
    """Draws `num_draws` random integers per sample and epoch."""

    num_draws: int

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
        """Return the draws of an epoch, (num_draws, num_samples)."""
        ...


class Window(Augmenter, Protocol):
    """Reads one crop of each packed image at `rows` (n,), at the place that `draws` (num_draws, n) give. Returns (n, height, width, words)."""

    border: int
    """Width in pixels of the border that the packed images must have."""

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor: ...


class Change(Augmenter, Protocol):
    """Changes images (n, height, width, words), each by its `draws` (num_draws, n)."""

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor: ...
