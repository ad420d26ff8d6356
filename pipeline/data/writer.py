"""Writes `data/prepared/` block by block: appends rows, computes exact statistics, and writes `spec.json` last."""

import hashlib
import io
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pipeline.data.prepared import FORMAT, PreparedRecord, SplitRecord
from pipeline.io import files
from pipeline.raw_dataset import SPLITS, TRAIN, Block, RawDataset
from pipeline.refusal import Refusal
from pipeline.spec import Spec

BYTE = 255.0
MOST_LINES = 16


class GrowingArray:
    """An `.npy` file to which rows are appended, and its SHA-256.

    The header is rewritten at the end if fewer rows than `planned` were appended.
    """

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: type, *, planned: int) -> None:
        self.path, self.row_shape, self.dtype, self.planned = path, row_shape, np.dtype(dtype), planned
        self.rows = 0
        self.file = path.open("wb")
        self.state = hashlib.sha256()
        self.write(self.header(planned))

    def header(self, rows: int) -> bytes:
        """Return the `.npy` header. Its length is the same for any number of rows: numpy pads it so that the first dimension can grow."""
        header = io.BytesIO()
        npy.write_array_header_1_0(
            header, {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (rows, *self.row_shape)}
        )
        return header.getvalue()

    def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.state.update(data)

    def append(self, rows: NDArray[Any]) -> None:
        assert rows.shape[1:] == self.row_shape
        assert rows.dtype == self.dtype
        self.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)

    @property
    def left_out(self) -> int:
        return self.planned - self.rows

    def digest(self) -> str:
        """Return the SHA-256 of the file in hexadecimal. Call it after the context has ended."""
        return files.digest(self.path) if self.left_out else self.state.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.file:
            if error is None and self.left_out:
                self.file.seek(0)
                self.file.write(self.header(self.rows))
        files.sync(self.path)


class ChannelSums:
    """Exact sums of the bytes of each channel and of their squares, so that the statistics do not depend on the order of the samples."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.sums = np.zeros(channels, dtype=np.int64)
        self.squares = np.zeros(channels, dtype=np.int64)

    def add(self, inputs: NDArray[np.uint8]) -> None:
        """Add images (n, height, width, channels), several image lines at once: long enough to be fast, short enough to stay in cache."""
        _, height, width, channels = inputs.shape
        rows = inputs.reshape(-1, math.gcd(height, MOST_LINES) * width * channels)
        self.sums += self.by_channel(rows, 255)
        self.squares += self.by_channel(np.square(rows, dtype=np.uint16), 255**2)
        self.count += inputs[..., 0].size

    def by_channel(self, rows: NDArray[Any], most: int) -> NDArray[np.int64]:
        """Return the sums by channel (channels,). Adds in the smallest integer type that holds `len(rows)` values of at most `most`."""
        enough = np.min_scalar_type(len(rows) * most)
        summed: NDArray[np.int64] = rows.sum(axis=0, dtype=enough).reshape(-1, len(self.sums)).sum(axis=0, dtype=np.int64)
        return summed

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of `byte / 255` by channel; the latter is 1 for a constant channel."""
        mean = self.sums / self.count
        variance = self.squares / self.count - mean**2
        std = np.where(variance > 0, np.sqrt(np.maximum(variance, 0)), BYTE)
        return tuple(float(m / BYTE) for m in mean), tuple(float(s / BYTE) for s in std)


def write(raw_dataset: RawDataset, assigned: Mapping[str, NDArray[np.str_]], folder: Path, *, blocks: Iterator[Block]) -> PreparedRecord:
    """Write each sample into its assigned split, block by block; memory stays bounded by one block.

    `spec.json` is removed first and written last, so that partly written data is never taken for prepared data.
    Raises Refusal where every sample of a split, or of a class of train, is corrupt.
    """
    clear(folder)
    wanted = {name: sum(int((splits == name).sum()) for splits in assigned.values()) for name in SPLITS}
    planned = {name: rows for name, rows in wanted.items() if rows}
    counts = {name: np.zeros(len(raw_dataset.classes), dtype=np.int64) for name in planned}
    sums = ChannelSums(raw_dataset.shape[2])
    with ExitStack() as stack:
        inputs = {
            name: stack.enter_context(GrowingArray(folder / f"{name}-inputs.npy", raw_dataset.shape, np.uint8, planned=rows))
            for name, rows in planned.items()
        }
        targets = {
            name: stack.enter_context(GrowingArray(folder / f"{name}-targets.npy", (), np.int64, planned=rows))
            for name, rows in planned.items()
        }
        for block in blocks:
            destinations = assigned[block.split][block.positions]
            numbers = raw_dataset.targets[block.split][block.positions]
            for name in np.unique(destinations):
                rows = destinations == name
                chosen = block.inputs if rows.all() else block.inputs[rows]  # no copy for a block that goes to one split
                inputs[name].append(chosen)
                targets[name].append(numbers[rows])
                counts[name] += np.bincount(numbers[rows], minlength=len(raw_dataset.classes))
                if name == TRAIN:
                    sums.add(chosen)
    refuse_losses(raw_dataset.classes, counts)
    mean, std = sums.statistics()
    record = PreparedRecord(
        format=FORMAT,
        spec=Spec(shape=raw_dataset.shape, classes=raw_dataset.classes, mean=mean, std=std),
        splits={name: describe(inputs[name], targets[name]) for name in planned},
    )
    files.write_json(folder / "spec.json", record.model_dump(mode="json"))
    return record


def clear(folder: Path) -> None:
    """Remove the files of an earlier `prepare`, including those of splits that no longer exist."""
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


def describe(inputs: GrowingArray, targets: GrowingArray) -> SplitRecord:
    return SplitRecord(samples=inputs.rows, left_out=inputs.left_out, inputs_digest=inputs.digest(), targets_digest=targets.digest())
