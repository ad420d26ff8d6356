"""A dataset as read from its source, before it is split and stored."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # pipeline.params imports this module and must load fast, so numpy is not imported here
    import numpy as np
    from numpy.typing import NDArray

    from pipeline import spec

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")


class Statistics(Protocol):
    """Computes the description of a dataset's inputs from its train samples, which are added a few at a time."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one stored sample."""
        ...

    @property
    def dtype(self) -> "type[np.generic]":
        """Return the NumPy dtype in which `prepare` stores the inputs."""
        ...

    def add(self, inputs: "NDArray[Any]", /) -> None:
        """Add some train samples, (n, *row_shape)."""
        ...

    def inputs(self) -> "spec.Inputs":
        """Return the description of the inputs, once all train samples have been added."""
        ...


@dataclass(frozen=True)
class SampleBlock:
    """Some samples of one split of the source: `inputs` (n, *row_shape), and `positions` (n,), the samples' indices in the targets of that split."""

    split: str
    positions: "NDArray[np.int64]"
    inputs: "NDArray[Any]"


@dataclass(frozen=True)
class RawDataset:
    """A dataset with all targets in memory and its samples as a stream, so that the samples may exceed memory.

    `task` describes the targets. `targets` maps each split of the source (train, and possibly valid and test) to its targets (n, ...).
    `blocks()` yields every sample except corrupt ones, in ascending position within a split. If you stop early, close the generator that
    `blocks()` returned: it may own worker processes. `statistics` describes the inputs once the train samples have been added to it.
    `fit(assigned)` is called once, before `blocks()`. `assigned` maps each split of the source to the split (train, valid or test) that each
    of its samples is assigned to. A source of texts fits its tokenizer to those of train.
    """

    task: "spec.Targets"
    statistics: Statistics
    targets: "Mapping[str, NDArray[Any]]"
    blocks: Callable[[], Generator[SampleBlock]]
    fit: "Callable[[Mapping[str, NDArray[np.str_]]], None]" = lambda _: None
