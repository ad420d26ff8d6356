"""The interfaces of augmentations. Each augmentation draws a table of random integers for an epoch, and later changes images according to these integers."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Table = NDArray[np.int64]


class RandomSource(Protocol):
    """Returns the random generator of one purpose, such as `generator_for("flip", epoch)`.

    Each augmentation has its own purpose, so that enabling one augmentation does not change the draws of another.
    """

    def __call__(self, *purpose: str | int) -> np.random.Generator: ...


class Augmenter(Protocol):
    """Draws `num_draws` random integers per sample and epoch."""

    num_draws: int

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
        """Return the draws of an epoch, (num_draws, num_samples)."""
        ...


class Window(Augmenter, Protocol):
    """Reads one crop of each packed image at `rows` (n,), at the place that `draws` (num_draws, n) determine. `read` returns (n, height, width, words)."""

    border: int
    """Width in pixels of the border that the packed images must have."""

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor: ...


class Change(Augmenter, Protocol):
    """Changes packed images (n, height, width, words), each according to its column of `draws` (num_draws, n)."""

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor: ...
