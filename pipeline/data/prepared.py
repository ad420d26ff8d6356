"""The prepared data on disk: one array of inputs and one of targets a split, memory-mapped, and `spec.json` that describes them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from pipeline import files
from pipeline.collection import SPLITS, TRAIN, Block, Collection
from pipeline.refusal import Refusal
from pipeline.spec import Spec

FORMAT = "pipeline-prepared-1"
BYTE = 255.0


class SplitRecord(BaseModel):
    """How many samples a split has, the SHA-256 of its two files, and how many corrupt samples were left out of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: NonNegativeInt
    left_out: NonNegativeInt
    inputs_digest: str
    targets_digest: str


class PreparedRecord(BaseModel):
    """The contents of `spec.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["pipeline-prepared-1"]
    spec: Spec
    splits: dict[str, SplitRecord]


@dataclass(frozen=True)
class Split:
    """`inputs` (n, height, width, channels) uint8 and `targets` (n,) int64, mapped from the disk and copied on write."""

    inputs: NDArray[np.uint8]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Prepared:
    """An opened `data/prepared/`; `digest` stands for every byte in it."""

    spec: Spec
    digest: str
    splits: Mapping[str, Split]

    @property
    def train(self) -> Split:
        return self.splits[TRAIN]

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        """Raises Refusal where the folder is missing, of another format, or not the bytes that `prepare` wrote."""
        record = read_record(folder)
        splits = {name: open_split(folder, name, record) for name in SPLITS if name in record.splits}
        return cls(record.spec, files.digest_of(record.model_dump(mode="json")), splits)

    def split(self, name: str) -> Split:
        """Raises Refusal for a split that the prepared data does not have."""
        if name not in self.splits:
            raise Refusal(f"the prepared data has no {name} split: set source.{name} and run `dvc repro` again")
        return self.splits[name]


def read_record(folder: Path) -> PreparedRecord:
    path = folder / "spec.json"
    try:
        return PreparedRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro prepare`") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise Refusal(f"{path}: is not of the format {FORMAT} ({place}: {first['msg']}): run `dvc repro -f prepare`") from None


def open_split(folder: Path, name: str, record: PreparedRecord) -> Split:
    expected = record.splits[name]
    inputs = read_array(folder / f"{name}-inputs.npy", expected.inputs_digest, (expected.samples, *record.spec.shape), np.uint8)
    targets = read_array(folder / f"{name}-targets.npy", expected.targets_digest, (expected.samples,), np.int64)
    if len(targets) and not 0 <= targets.min() <= targets.max() < record.spec.num_classes:
        raise Refusal(f"{folder}: {name} has targets outside its {record.spec.num_classes} classes: run `dvc repro -f prepare`")
    return Split(inputs, targets)


def read_array(path: Path, digest: str, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    try:
        if files.digest(path) != digest:
            raise Refusal(f"{path}: is not the file that spec.json describes: run `dvc repro -f prepare`")
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(f"{path}: cannot be read ({error}): run `dvc repro -f prepare`") from None
    if array.shape != shape or array.dtype != dtype:
        raise Refusal(f"{path}: holds {array.shape} {array.dtype}, spec.json says {shape}: run `dvc repro -f prepare`")
    return array


class GrowingArray:
    """An `.npy` file of rows that are appended, whose header is completed when the context ends well."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: type) -> None:
        self.path, self.row_shape, self.dtype = path, row_shape, np.dtype(dtype)
        self.rows = 0
        self.file = path.open("wb")
        self.write_header()

    def write_header(self) -> None:
        # numpy pads the header so that the first dimension can grow in place
        header = {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.rows, *self.row_shape)}
        self.file.seek(0)
        npy.write_array_header_1_0(self.file, header)

    def append(self, rows: NDArray[Any]) -> None:
        assert rows.shape[1:] == self.row_shape
        assert rows.dtype == self.dtype
        self.file.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.file:
            if error is None:
                self.write_header()
        files.sync(self.path)


class ChannelSums:
    """Exact sums of the bytes of each channel and of their squares, so that the statistics depend on no order."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.sums = np.zeros(channels, dtype=np.int64)
        self.squares = np.zeros(channels, dtype=np.int64)

    def add(self, inputs: NDArray[np.uint8]) -> None:
        for channel in range(len(self.sums)):
            histogram = np.bincount(inputs[..., channel].ravel(), minlength=256)
            self.sums[channel] += histogram @ np.arange(256)
            self.squares[channel] += histogram @ np.arange(256) ** 2
        self.count += inputs[..., 0].size

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of `byte / 255` by channel; a constant channel keeps its scale."""
        mean = self.sums / self.count
        variance = self.squares / self.count - mean**2
        std = np.where(variance > 0, np.sqrt(np.maximum(variance, 0)), BYTE)
        return tuple(float(m / BYTE) for m in mean), tuple(float(s / BYTE) for s in std)


def write(collection: Collection, assigned: Mapping[str, NDArray[np.str_]], folder: Path, *, blocks: Iterator[Block]) -> PreparedRecord:
    """Stream the blocks into the splits they are assigned to; memory stays bounded by one block.

    `spec.json` goes first and comes last, so that what lies in between is never taken for prepared data.
    Raises Refusal where the corrupt samples took all of a split or of a class of train with them.
    """
    clear(folder)
    names = [name for name in SPLITS if any((splits == name).any() for splits in assigned.values())]
    counts = {name: np.zeros(len(collection.classes), dtype=np.int64) for name in names}
    sums = ChannelSums(collection.shape[2])
    with ExitStack() as stack:
        inputs = {name: stack.enter_context(GrowingArray(folder / f"{name}-inputs.npy", collection.shape, np.uint8)) for name in names}
        targets = {name: stack.enter_context(GrowingArray(folder / f"{name}-targets.npy", (), np.int64)) for name in names}
        for block in blocks:
            destinations = assigned[block.split][block.positions]
            numbers = collection.targets[block.split][block.positions]
            for name in np.unique(destinations):
                rows = destinations == name
                inputs[name].append(block.inputs[rows])
                targets[name].append(numbers[rows])
                counts[name] += np.bincount(numbers[rows], minlength=len(collection.classes))
            sums.add(block.inputs[destinations == TRAIN])
    refuse_losses(collection.classes, counts)
    mean, std = sums.statistics()
    record = PreparedRecord(
        format=FORMAT,
        spec=Spec(shape=collection.shape, classes=collection.classes, mean=mean, std=std),
        splits={name: describe(folder, name, inputs[name].rows, planned(assigned, name)) for name in names},
    )
    files.write_json(folder / "spec.json", record.model_dump(mode="json"))
    return record


def clear(folder: Path) -> None:
    """Remove what an earlier `prepare` left, also of splits that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("spec.json", *(f"{split}-{part}.npy" for split in SPLITS for part in ("inputs", "targets"))):
        (folder / name).unlink(missing_ok=True)


def refuse_losses(classes: tuple[str, ...], counts: Mapping[str, NDArray[np.int64]]) -> None:
    for name, numbers in counts.items():
        if not numbers.any():
            raise Refusal(f"source.root: every sample of {name} is corrupt: mend or replace them")
    lost = [classes[number] for number in np.flatnonzero(counts[TRAIN] == 0)]
    if lost:
        raise Refusal(f"source.root: train has no sample of {', '.join(lost[:5])} that is not corrupt: add some, or remove the class")


def planned(assigned: Mapping[str, NDArray[np.str_]], name: str) -> int:
    return sum(int((splits == name).sum()) for splits in assigned.values())


def describe(folder: Path, name: str, samples: int, expected: int) -> SplitRecord:
    inputs_digest, targets_digest = (files.digest(folder / f"{name}-{part}.npy") for part in ("inputs", "targets"))
    return SplitRecord(samples=samples, left_out=expected - samples, inputs_digest=inputs_digest, targets_digest=targets_digest)
