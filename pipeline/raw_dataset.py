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
    """Computes the description of a dataset's inputs. While `prepare` stores the samples, it adds those of train, some at a time."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one stored sample."""
        ...

    @property
    def dtype(self) -> "type[np.generic]":
        """Return the NumPy dtype in which `prepare` stores the inputs."""
        ...

    def add(self, inputs: "NDArray[Any]", /) -> None:
        """Add some train samples, an array (n, *row_shape)."""
        ...

    def inputs(self) -> "spec.Inputs":
        """Return the description of the inputs. Call this after all train samples have been added."""
        ...


@dataclass(frozen=True)
class SampleBlock:
    """Some samples of one split of the source.

    `inputs` is an array (n, *row_shape). `positions` (n,) are the indices of these samples in the split.
    """

    split: str
    positions: "NDArray[np.int64]"
    inputs: "NDArray[Any]"


@dataclass(frozen=True)
class RawDataset:
    """A dataset that is read from its source. All targets are in memory. The samples are yielded in blocks, so they need not fit in memory.

    `task` describes the targets. `targets` maps each split of the source (train, and possibly valid and test) to its targets (n, ...).
    `blocks()` yields every sample except corrupt ones, in ascending position within a split. If you stop early, close the generator that
    `blocks()` returned: it may own worker processes. `statistics` describes the inputs after all train samples have been added to it.

    `prepare` may move samples of the source's train split to valid or test. `fit(assigned)` says where each sample goes: `assigned` maps
    each split of the source to an array (n,) with the name of the final split of each sample. It is called once, before `blocks()`. A
    source of texts may fit its tokenizer in this call, to the samples whose final split is train.
    """

    task: "spec.Targets"
    statistics: Statistics
    targets: "Mapping[str, NDArray[Any]]"
    blocks: Callable[[], Generator[SampleBlock]]
    fit: "Callable[[Mapping[str, NDArray[np.str_]]], None]" = lambda _: None
