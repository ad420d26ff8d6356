"""A dataset as read from its source, before it is split and stored."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parameters import this module, and must load fast: without numpy
    import numpy as np
    from numpy.typing import NDArray

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Block:
    """Some samples of one split: `inputs` (n, height, width, channels) uint8, and their `positions` (n,) in the targets of the split."""

    split: str
    positions: "NDArray[np.int64]"
    inputs: "NDArray[np.uint8]"


@dataclass(frozen=True)
class RawDataset:
    """A dataset with all targets in memory and its samples as a stream, so that it may be larger than memory.

    `targets` maps each split of the source (train, and perhaps valid and test) to its class numbers (n,).
    `blocks()` yields every sample, in ascending order within a split; samples left out as corrupt do not appear.
    Close the generator when you stop early: it may own worker processes.
    """

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    targets: "Mapping[str, NDArray[np.int64]]"
    blocks: Callable[[], Generator[Block]]
