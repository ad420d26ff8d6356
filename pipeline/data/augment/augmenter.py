"""What every augmentation is: its own rows of an epoch's table, and what it does with them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Table = NDArray[np.int64]


class Dice(Protocol):
    """`dice("flip", epoch)` is the generator of one purpose, so that switching one augmentation on changes the draws of no other."""

    def __call__(self, *purpose: str | int) -> np.random.Generator: ...


class Augmenter(Protocol):
    """Draws `num_draws` integers a sample and epoch."""

    num_draws: int

    def draw(self, dice: Dice, epoch: int, num_samples: int) -> Table:
        """(num_draws, num_samples)."""
        ...


class Window(Augmenter, Protocol):
    """Reads the samples at `rows` (n,) of the packed images, each as its `draws` (num_draws, n) say: (n, height, width, words)."""

    border: int
    """Of the packed images."""

    def read(self, packed: Tensor, rows: Tensor, draws: Tensor) -> Tensor: ...


class Change(Augmenter, Protocol):
    """Changes images (n, height, width, words), each as its `draws` (num_draws, n) say."""

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor: ...
