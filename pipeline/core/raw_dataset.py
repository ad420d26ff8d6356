"""A dataset as read from its source, before it is split and stored."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:  # pipeline.prepare.params imports this module and must load fast, so numpy is not imported here
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from pipeline.core import spec

from pipeline.core.refusal import Refusal

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
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

    def summarize(self, inputs: "NDArray[Any]", /) -> Any:
        """Return what `add` needs of some train samples, an array (n, *row_shape). This changes nothing here.

        Worker processes may call it, on a copy of this object, so it returns little, such as sums. Sums are best exact integers: the order
        in which they are added then does not matter.
        """
        ...

    def add(self, summary: Any, /) -> None:
        """Add some train samples, of which `summary` is what `summarize` returned."""
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


def blocks_of(splits: "Mapping[str, NDArray[Any]]", size: int) -> Generator[SampleBlock]:
    """Yield the samples of each split, an array (n, ...) in memory, in blocks of at most `size` samples."""
    import numpy as np

    for split, samples in splits.items():
        for start in range(0, len(samples), size):
            block = samples[start : start + size]
            yield SampleBlock(split, np.arange(start, start + len(block)), block)


class Destination(Protocol[Result_co]):
    """Stores some samples of one split of the source. It can be pickled, so that a worker process can store what it decoded."""

    def store(self, inputs: "NDArray[Any]", kept: "NDArray[np.bool_]", /) -> Result_co:
        """Store the inputs, and return a small result that can be pickled.

        `kept` has one value for each sample of this destination: False if the sample is corrupt. `inputs` contains only the others.
        """
        ...


Place = Callable[[str, "NDArray[np.int64]"], Destination[Result]]
"""Returns the destination of some samples: the arguments are a split of the source, and the positions of the samples in it."""


@dataclass(frozen=True)
class Cluster:
    """A dask.distributed cluster: the address of its scheduler, and paths that all of its workers must see, such as files to be written."""

    address: str
    shared: "tuple[Path, ...]"


class DecodeAndStore(Protocol):
    """Decodes all samples in worker processes or threads, or on the workers of a cluster, and stores them there.

    Yields what the destinations of the samples return. The samples of a destination are in ascending position.
    """

    def __call__(self, place: "Place[Result]", cluster: Cluster | None = None, /) -> "Generator[Result]": ...


@dataclass(frozen=True)
class RawDataset:
    """A dataset that is read from its source. All targets are in memory. The samples are yielded in blocks, so they need not fit in memory.

    `task` describes the targets. `targets` maps each split of the source (train, and possibly valid and test) to its targets (n, ...).
    `blocks()` yields every sample except corrupt ones, in ascending position within a split. If you stop early, close the generator that
    `blocks()` returned: it may own worker processes. `statistics` describes the inputs after all train samples have been added to it.

    `prepare` may move samples of the source's train split to valid or test. `fit(assigned)` says where each sample goes: `assigned` maps
    each split of the source to an array (n,) with the name of the final split of each sample. It is called once, before `blocks()`. A
    source of texts may fit its tokenizer in this call, to the samples whose final split is train.

    A source whose samples take long to decode also has `decode_and_store`: worker processes then write the samples that they decoded, and
    `blocks()` is not used by `prepare`.

    `drawing_keys()` returns a key of each train sample, such as its path: missing splits are then drawn in the order of a hash of the keys
    (see `pipeline.prepare.split`). If `together`, samples with equal keys go to one split. `sample_keys()` returns where each sample of each
    split was found, which `prepare` writes beside the arrays. `notes` are sentences about what is not used, which it prints.
    `described` has fields of the description of the inputs that say how they were read, such as `{"column": "text"}`.
    """

    task: "spec.Targets"
    statistics: Statistics
    targets: "Mapping[str, NDArray[Any]]"
    blocks: Callable[[], Generator[SampleBlock]]
    fit: "Callable[[Mapping[str, NDArray[np.str_]]], None]" = lambda _: None
    decode_and_store: DecodeAndStore | None = None
    drawing_keys: "Callable[[], Iterable[bytes]] | None" = None
    together: bool = False
    sample_keys: "Callable[[], Mapping[str, Sequence[str]]] | None" = None
    notes: tuple[str, ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise Refusal if a split has an unknown name, if there is no train split, or if targets are not those of the task."""
        import numpy as np

        if TRAIN not in self.targets or self.targets.keys() - set(SPLITS):
            raise Refusal(
                f"source.name: this source returns the splits {', '.join(self.targets) or 'none'}: "
                "correct its `open`: it must return `train`, and may return `valid` and `test`"
            )
        for split, targets in self.targets.items():
            if self.task.stored == "windows":
                continue
            if not isinstance(targets, np.ndarray):
                raise Refusal(
                    f"source.name: this source returns the targets of {split} as a {type(targets).__name__}: return a NumPy array"
                )
            expected = (len(targets), *self.task.row_shape)
            if targets.dtype != self.task.dtype or targets.shape != expected:
                raise misfit(f"the array of targets of {split}", targets, self.task.dtype, expected, method="open")
            self.task.refuse_invalid(targets, f"source.name: {split}")

    def store(self, place: "Place[Result]", cluster: Cluster | None = None) -> "Generator[Result]":
        """Store every sample except corrupt ones at its destination, and yield the results. Close the generator if you stop early.

        If the samples are decoded by workers, and `cluster` is given, these are workers of the cluster.
        """
        import numpy as np

        if self.decode_and_store:
            yield from self.decode_and_store(place, cluster)
        else:
            with closing(self.blocks()) as blocks:
                last = dict.fromkeys(self.targets, -1)
                for block in blocks:
                    self.refuse_misfit(block, last.get(block.split, -1))
                    last[block.split] = int(block.positions[-1]) if len(block.positions) else last[block.split]
                    yield place(block.split, block.positions).store(block.inputs, np.ones(len(block.positions), dtype=bool))

    def refuse_misfit(self, block: SampleBlock, last: int) -> None:
        """Raise Refusal if `block` is not one that `blocks()` may yield. `last` is the last position before it in its split, or -1."""
        import numpy as np

        if block.split not in self.targets:
            raise Refusal(f"source.name: this source has a block of {block.split!r}, but no targets for it: correct its `blocks`")
        expected = (len(block.positions), *self.statistics.row_shape)
        if block.inputs.dtype != self.statistics.dtype or block.inputs.shape != expected:
            raise misfit(f"a block of {block.split}", block.inputs, self.statistics.dtype, expected, method="blocks")
        samples = len(self.targets[block.split])
        if (np.diff(block.positions, prepend=last, append=samples) < 1).any():
            raise Refusal(
                f"source.name: in this source, the positions in the blocks of {block.split} do not ascend from 0 to {samples - 1}: correct its "
                "`blocks`: a position counts the samples of the whole split, in the order of its targets"
            )


def misfit(what: str, found: "NDArray[Any]", dtype: "type[np.generic]", shape: tuple[int, ...], *, method: str) -> Refusal:
    """Return the Refusal for an array of a source with another dtype or shape than it needs. `method` is where the source made it."""
    return Refusal(
        f"source.name: in this source, {what} has {found.dtype} {found.shape}, not {dtype.__name__} {shape}: correct its `{method}`"
    )
