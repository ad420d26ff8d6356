"""A dataset as read from its source, before it is split and stored."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the parameters import this module, and must load fast: without numpy
    import numpy as np
    from numpy.typing import NDArray

    from pipeline import spec

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")


class Statistics(Protocol):
    """Describes the inputs of a dataset once all of train has been read."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        ...

    @property
    def dtype(self) -> "type[np.generic]":
        """The type of the inputs."""
        ...

    def add(self, inputs: "NDArray[Any]", /) -> None:
        """Take some samples of train into account."""
        ...

    def inputs(self) -> "spec.Inputs":
        """Return the description of the inputs."""
        ...


@dataclass(frozen=True)
class SampleBlock:
    """Some samples of one split: `inputs` (n, *row_shape), and their `positions` (n,) in the targets of the split."""

    split: str
    positions: "NDArray[np.int64]"
    inputs: "NDArray[Any]"


@dataclass(frozen=True)
class RawDataset:
    """A dataset with all targets in memory and its samples as a stream, so that it may be larger than memory.

    `task` describes the targets. `targets` maps each split of the source (train, and perhaps valid and test) to its targets (n, ...).
    `statistics` describes the inputs after `blocks()` has yielded every sample, in ascending order within a split; samples left out as
    corrupt do not appear. Close the generator when you stop early: it may own worker processes.
    """

    task: "spec.Targets"
    statistics: Statistics
    targets: "Mapping[str, NDArray[Any]]"
    blocks: Callable[[], Generator[SampleBlock]]
