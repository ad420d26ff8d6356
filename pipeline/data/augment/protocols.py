"""The interfaces of augmentations.

An augmentation first draws random integers for all samples of an epoch. Later it changes images according to these integers.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Table = NDArray[np.int64]


class RandomSource(Protocol):
    """A function that returns a random generator. The arguments name its purpose, for example `generator_for("flip", epoch)`.

    A purpose always gives the same random numbers. Each augmentation has its own purpose, so that enabling one augmentation does not change
    the draws of another.
    """

    def __call__(self, *purpose: str | int) -> np.random.Generator: ...


class Augmenter(Protocol):
    """Draws `num_draws` random integers per sample in each epoch."""

    num_draws: int

    def draw(self, generator_for: RandomSource, epoch: int, num_samples: int) -> Table:
        """Return the random integers for all samples of an epoch, (num_draws, num_samples)."""
        ...


class Window(Augmenter, Protocol):
    """Reads one crop of each image.

    `read` crops the packed images at `rows` (n,), and returns the crops (n, height, width, words) in the packed format. The random
    integers `draws` (num_draws, n) determine where each crop is.
    """

    border: int
    """Width in pixels of the border that the packed images must have."""

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor: ...


class Change(Augmenter, Protocol):
    """Changes packed images (n, height, width, words). Column i of the random integers `draws` (num_draws, n) controls image i."""

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor: ...
