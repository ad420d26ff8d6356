"""Writes `data/prepared/`: plans the row of every sample, stores the samples, and writes `spec.json` last."""

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import closing
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core import files
from pipeline.core.prepared import FORMAT, PreparedRecord, SplitRecord
from pipeline.core.raw_dataset import SPLITS, TRAIN, Cluster, RawDataset
from pipeline.core.refusal import Refusal
from pipeline.core.spec import Spec
from pipeline.prepare.rows import RowFile, RowRange, Rows

KEYS_AT_ONCE = 65_536
Assigned = Mapping[str, NDArray[np.str_]]


def write(
    raw_dataset: RawDataset,
    assigned: Assigned,
    folder: Path,
    *,
    source: Mapping[str, Any] | None = None,
    advance: Callable[[int], None] = lambda _: None,
    cluster: str | None = None,
) -> PreparedRecord:
    """Write each sample to the files of its split, and then `spec.json`. Return the contents of `spec.json`.

    `assigned` maps each split of the source to an array with one name per sample: the split to which the sample is written. The row of a
    sample in its file is known before the sample is decoded, so that worker processes can write it. Corrupt samples leave gaps, which are
    closed at the end. All targets are in memory. `spec.json` is removed first and written last, so that partly written data is never used.
    `source` are the parameters that `spec.json` records. `advance` is called with the number of samples, whenever some are stored. `cluster` is the address of a cluster whose workers decode and
    store the samples. They must see `folder` under the same path.

    Raises Refusal if every sample of a split is corrupt. Raises Refusal if a model can learn nothing from the train samples that are left,
    for example because every sample of a class is corrupt.
    """
    clear(folder)
    try:
        with files.digest_threads() as pool:
            stored = store(raw_dataset, assigned, folder.absolute() if cluster else folder, pool, advance=advance, cluster=cluster)
    except BaseException:
        files.sweep(folder)
        raise
    record = stored.model_copy(update={"source": source})
    files.write_json(folder / "spec.json", record.model_dump(mode="json"))
    return record


def clear(folder: Path) -> None:
    """Remove the files of an earlier `prepare`, including those of splits that no longer exist, and the drafts of a killed one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("spec.json", *(f"{split}-{part}" for split in SPLITS for part in ("inputs.npy", "targets.npy", "keys.jsonl"))):
        (folder / name).unlink(missing_ok=True)
    files.sweep(folder)


def store(
    raw_dataset: RawDataset, assigned: Assigned, folder: Path, pool: Executor, *, advance: Callable[[int], None], cluster: str | None
) -> PreparedRecord:
    """Do all of `write` except `spec.json`: return the contents for this file. Drafts remain in `folder` if an exception is raised.

    Files are digested on `pool` while samples are decoded.
    """
    planned, rows = plan(assigned)
    task, statistics = raw_dataset.task, raw_dataset.statistics
    shape, dtype, shared = statistics.row_shape, np.dtype(statistics.dtype), cluster is not None
    inputs = {name: RowFile(folder / f"{name}-inputs.npy", shape, dtype, shared) for name in planned}
    for name, file in inputs.items():
        file.create(planned[name])

    def place(split: str, positions: NDArray[np.int64]) -> Rows:
        names, numbers = assigned[split][positions], rows[split][positions]
        starts = {str(name): int(numbers[names == name][0]) for name in np.unique(names)}
        return Rows(split, positions, names, starts, {name: inputs[name] for name in starts}, statistics.summarize)

    kept = {split: np.zeros(len(names), dtype=bool) for split, names in assigned.items()}
    progress = {name: StoredRows(file, pool) for name, file in inputs.items()}
    workers = Cluster(cluster, tuple(file.draft for file in inputs.values())) if cluster else None
    with closing(raw_dataset.store(place, workers)) as results:
        for stored in results:
            kept[stored.split][stored.positions] = True
            for name, found in stored.ranges.items():
                progress[name].add(found, stored.digests[name])
            for summary in stored.summaries:
                statistics.add(summary)
            advance(len(stored.positions))
    targets = {
        name: np.concatenate([raw_dataset.targets[split][(names == name) & kept[split]] for split, names in assigned.items()])
        for name in planned
    }
    if lost := [name for name, numbers in targets.items() if not len(numbers)]:
        raise Refusal(f"source.root: every sample of the {lost[0]} split is corrupt: repair or replace the samples")
    task.refuse_unlearnable(targets[TRAIN], "train without its corrupt samples")
    counted = also_in({name: np.concatenate(stored.row_digests) for name, stored in progress.items()})
    splits = {name: finish(progress[name], targets[name], folder, planned=planned[name], also_in=counted[name]) for name in planned}
    if task.stored != "windows":
        write_keys(folder, raw_dataset, assigned, kept, splits)
    inputs_read = statistics.inputs().model_copy(update=raw_dataset.described)
    return PreparedRecord(format=FORMAT, spec=Spec(inputs=inputs_read, targets=task.fitted(targets[TRAIN])), splits=splits)


class StoredRows:
    """Records which rows of a file are stored, and digests the file up to the first row that is not stored yet."""

    def __init__(self, file: RowFile, pool: Executor) -> None:
        self.file, self.pool = file, pool
        self.ranges: list[RowRange] = []
        self.row_digests: list[NDArray[np.uint64]] = []
        """The digests of the stored rows, in any order."""
        self.complete = 0
        """The number of rows from the first on that are all stored."""
        self.digest = files.ChunkedDigest(file.draft, pool)

    def add(self, rows: RowRange, row_digests: NDArray[np.uint64]) -> None:
        self.ranges.append(rows)
        self.row_digests.append(row_digests)
        if rows.start == self.complete and not self.file.shared:  # a shared file could be read before what another machine wrote is seen
            self.complete += rows.length
            self.digest.advance(self.file.offset(self.complete))


def plan(assigned: Assigned) -> tuple[dict[str, int], dict[str, NDArray[np.int64]]]:
    """Return the number of samples of each split that has any; and the row of each sample in the file of its split, as if none was corrupt.

    The rows are a dict from each split of the source to an array (n,). The samples of a file are in the order of their positions.
    """
    planned = dict.fromkeys(SPLITS, 0)
    rows = {split: np.zeros(len(names), dtype=np.int64) for split, names in assigned.items()}
    for split, names in assigned.items():
        for name in planned:
            chosen = np.flatnonzero(names == name)
            rows[split][chosen] = planned[name] + np.arange(len(chosen))
            planned[name] += len(chosen)
    return {name: count for name, count in planned.items() if count}, rows


def also_in(digests: Mapping[str, NDArray[np.uint64]]) -> dict[str, dict[str, int]]:
    """Return for each split how many of its samples each split before it has, too. `digests` are those of the rows of each split."""
    names, ordered = list(digests), {name: np.sort(found) for name, found in digests.items()}

    def num_shared(some: NDArray[np.uint64], others: NDArray[np.uint64]) -> int:
        return int((np.searchsorted(others, some, "left") < np.searchsorted(others, some, "right")).sum())

    return {name: {other: num_shared(ordered[name], ordered[other]) for other in names[:at]} for at, name in enumerate(names)}


def write_keys(
    folder: Path, raw_dataset: RawDataset, assigned: Assigned, kept: Mapping[str, NDArray[np.bool_]], names: Iterable[str]
) -> None:
    """Write the key of each stored sample: one JSON string per line, for each of the splits `names`, in the order of the rows.

    JSON escapes line breaks, and bytes of a file name that are not UTF-8. The key is that of the source, or else the split and the position
    in the source, such as `train:17`. `kept` is True for the samples that are not corrupt.
    """
    keys = raw_dataset.sample_keys() if raw_dataset.sample_keys else None
    for name in names:
        with files.replacing(folder / f"{name}-keys.jsonl") as draft, draft.open("w", encoding="utf-8") as file:
            for split, destinations in assigned.items():
                chosen = (destinations == name) & kept[split]
                for start in range(0, len(chosen), KEYS_AT_ONCE):
                    end = min(start + KEYS_AT_ONCE, len(chosen))
                    every = keys[split][start:end] if keys else [f"{split}:{position}" for position in range(start, end)]
                    if several := [*compress(every, chosen[start:end])]:
                        file.write(json.dumps(several, separators=("\n", ":"))[1:-1] + "\n")


def finish(inputs: StoredRows, targets: NDArray[Any], folder: Path, *, planned: int, also_in: dict[str, int]) -> SplitRecord:
    """Close the gaps that corrupt samples left in the inputs, write the targets, and return the entry of the split in `spec.json`."""
    left_out = planned - len(targets)
    if left_out:
        inputs.file.close_gaps(inputs.ranges)
        inputs.digest = files.ChunkedDigest(inputs.file.draft, inputs.pool)  # rows have moved, and the header has changed
    inputs_digest = inputs.file.finish(inputs.digest)
    stored = RowFile(folder / inputs.file.path.name.replace("inputs", "targets"), targets.shape[1:], targets.dtype)
    stored.create(len(targets))
    stored.write(0, targets)
    targets_digest = stored.finish(files.ChunkedDigest(stored.draft, inputs.pool))
    return SplitRecord(samples=len(targets), left_out=left_out, also_in=also_in, inputs_digest=inputs_digest, targets_digest=targets_digest)
