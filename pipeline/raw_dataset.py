"""A dataset as its source offers it, before it is split and stored."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parameters name splits, and a typing error is said without numpy
    import numpy as np
    from numpy.typing import NDArray

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Block:
    """Some samples of one split: `inputs` (n, height, width, channels) uint8 at `positions` (n,) of the split's targets."""

    split: str
    positions: "NDArray[np.int64]"
    inputs: "NDArray[np.uint8]"


@dataclass(frozen=True)
class RawDataset:
    """Targets at once, samples in a stream, so that a dataset may be larger than memory.

    `targets` maps each split the source has (train, and perhaps valid and test) to its (n,) class numbers.
    `blocks()` yields every sample, each split's in ascending order; a sample that was left out as corrupt does not appear.
    Who stops early closes it: it may have processes.
    """

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    targets: "Mapping[str, NDArray[np.int64]]"
    blocks: Callable[[], Generator[Block]]
