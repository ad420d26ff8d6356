"""Writes `data/prepared/`: appends samples block by block, computes exact statistics, and writes `spec.json` last."""

import hashlib
import io
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
from pipeline.raw_dataset import SPLITS, TRAIN, RawDataset, SampleBlock
from pipeline.refusal import Refusal
from pipeline.spec import Spec


class GrowingArray:
    """Writes an `.npy` file by appending rows, and computes its SHA-256.

    `planned` is the expected number of rows. If fewer rows are appended, the header is rewritten at the end.
    """

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: type, *, planned: int) -> None:
        self.path, self.row_shape, self.dtype, self.planned = path, row_shape, np.dtype(dtype), planned
        self.rows = 0
        self.file = path.open("wb")
        self.state = hashlib.sha256()
        self.write(self.header(planned))

    def header(self, rows: int) -> bytes:
        """Return the `.npy` header for an array with `rows` rows.

        The length of the header does not depend on `rows`: numpy pads the header so that the first dimension can grow.
        """
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
        """Return the SHA-256 of the file in hexadecimal. Call it after the `with` block."""
        return files.digest(self.path) if self.left_out else self.state.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.file:
            if error is None and self.left_out:
                self.file.seek(0)
                self.file.write(self.header(self.rows))
        files.sync(self.path)


def write(
    raw_dataset: RawDataset, assigned: Mapping[str, NDArray[np.str_]], folder: Path, *, blocks: Iterator[SampleBlock]
) -> PreparedRecord:
    """Write each sample to the files of its split, and then `spec.json`. Return the contents of `spec.json`.

    `blocks` yields the samples in blocks, each of some samples of one split of the source. Corrupt samples are missing from the blocks.
    `assigned` maps each split of the source to an array with one name per sample: the split to which the sample is written. All targets,
    but only one block of inputs, are in memory. `spec.json` is removed first and written last, so that partly written data is never used.

    Raises Refusal if every sample of a split is corrupt. Raises Refusal if a model can learn nothing from the train samples that are left,
    for example because every sample of a class is corrupt.
    """
    clear(folder)
    wanted = {name: sum(int((splits == name).sum()) for splits in assigned.values()) for name in SPLITS}
    planned = {name: rows for name, rows in wanted.items() if rows}
    task, statistics = raw_dataset.task, raw_dataset.statistics
    with ExitStack() as stack:
        inputs = {
            name: stack.enter_context(GrowingArray(folder / f"{name}-inputs.npy", statistics.row_shape, statistics.dtype, planned=rows))
            for name, rows in planned.items()
        }
        targets = {
            name: stack.enter_context(GrowingArray(folder / f"{name}-targets.npy", task.row_shape, task.dtype, planned=rows))
            for name, rows in planned.items()
        }
        written = [np.empty((0, *task.row_shape), task.dtype)]
        for block in blocks:
            destinations = assigned[block.split][block.positions]
            block_targets = raw_dataset.targets[block.split][block.positions]
            for name in np.unique(destinations):
                rows = destinations == name
                chosen = block.inputs if rows.all() else block.inputs[rows]  # do not copy a block of which all samples go to one split
                inputs[name].append(chosen)
                targets[name].append(block_targets[rows])
                if name == TRAIN:
                    statistics.add(chosen)
                    written.append(block_targets[rows])
    for name, array in inputs.items():
        if not array.rows:
            raise Refusal(f"source.root: every sample of the {name} split is corrupt: repair or replace the samples")
    task.refuse_unlearnable(np.concatenate(written), "train without its corrupt samples")
    record = PreparedRecord(
        format=FORMAT,
        spec=Spec(inputs=statistics.inputs(), targets=task),
        splits={name: describe(inputs[name], targets[name]) for name in planned},
    )
    files.write_json(folder / "spec.json", record.model_dump(mode="json"))
    return record


def clear(folder: Path) -> None:
    """Remove the files of an earlier `prepare`, including those of splits that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("spec.json", *(f"{split}-{part}.npy" for split in SPLITS for part in ("inputs", "targets"))):
        (folder / name).unlink(missing_ok=True)


def describe(inputs: GrowingArray, targets: GrowingArray) -> SplitRecord:
    return SplitRecord(samples=inputs.rows, left_out=inputs.left_out, inputs_digest=inputs.digest(), targets_digest=targets.digest())
