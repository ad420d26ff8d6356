"""The stage prepare: reads the source and writes `data/prepared/`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.core import limits
from pipeline.core.environment import Environment, Paths
from pipeline.core.identity import RefuseChanges, record_nothing
from pipeline.core.observer import Observer
from pipeline.core.prepared import PreparedRecord, read_array, shared_samples
from pipeline.core.raw_dataset import TEST, TRAIN, VALID, Cluster, RawDataset
from pipeline.core.refusal import counted
from pipeline.core.untrusted import shown
from pipeline.prepare import split, writer
from pipeline.prepare.params import PrepareParams
from pipeline.prepare.progress import progress
from pipeline.prepare.reading.workers import CLUSTER


def prepare(
    params: PrepareParams,
    paths: Paths,
    environment: Environment,
    *,
    observer: Observer | None = None,  # noqa: ARG001  # preparing is not watched
    refuse_changes: RefuseChanges = record_nothing,
) -> None:
    """Store the dataset, and print the number of samples of each split. At the end, call `refuse_changes`, which may read it once more.

    Raises Refusal for the reasons of `read_and_store`.
    """
    CLUSTER.set(Cluster(environment.cluster, ()) if environment.cluster else None)
    record = read_and_store(params, paths, environment)
    refuse_changes(lambda: read_and_store(params, paths, environment) == record)
    for name, entry in record.splits.items():  # in the order of SPLITS
        skipped = f", {entry.left_out} skipped as corrupt" if entry.left_out else ""
        balance = smallest_and_largest(record, paths.prepared) if name == TRAIN else ""
        print(f"prepare: {name}: {counted(entry.samples, 'sample')}{skipped}{balance}")
    inputs, total = record.spec.inputs, sum(entry.samples for entry in record.splits.values())
    print(
        f"prepare: {counted(total, 'sample')} of {inputs.kind} inputs {inputs.row_shape}, {counted(record.spec.num_outputs, 'output')}",
        flush=True,
    )


def smallest_and_largest(record: PreparedRecord, folder: Path) -> str:
    """Return how many train samples the rarest and the most frequent class or label have, such as `, from 3 of class cat to 20 of class dog`.

    Return "" if the targets have no classes.
    """
    task, samples = record.spec.targets, record.splits[TRAIN].samples
    targets = read_array(folder / f"{TRAIN}-targets.npy", None, (samples, *task.row_shape), task.dtype)
    if not (sizes := sorted(task.sizes(targets).items(), key=lambda entry: entry[1])):
        return ""
    rarest, most = (f"{count:,} of {shown(name)}" for name, count in (sizes[0], sizes[-1]))
    return f", from {rarest} to {most}"


def read_and_store(params: PrepareParams, paths: Paths, environment: Environment) -> PreparedRecord:
    """Split, decode and store the dataset. Return the contents of `spec.json`, with the digests of all arrays.

    Raises Refusal if `source.root` does not exist or is unusable, or if a model cannot be trained on the targets, for example because a
    class has no samples.
    """
    raw_dataset, assigned = survey(params, workers=environment.workers)
    for note in raw_dataset.notes:
        print(f"prepare: {note}")
    raw_dataset.fit(assigned)
    if environment.cluster and params.source.cluster_paths() is None and not raw_dataset.decode_and_store:
        print("prepare: PIPELINE_CLUSTER is not used: this source has no images to decode and no texts to tokenize")
    total = sum(len(targets) for targets in raw_dataset.targets.values())
    with progress("prepare", total, "samples") as advance:
        source = params.source.model_dump(mode="json")
        record = writer.write(raw_dataset, assigned, paths.prepared, source=source, advance=advance, cluster=environment.cluster)
    for name, share in ((VALID, params.source.valid), (TEST, params.source.test)):
        if name in raw_dataset.targets and share and not params.source.divides:
            print(f"prepare: {name}: the dataset has its own {name} split, so source.{name} is not used")
    if shared := shared_samples(record.splits):
        kept = getattr(params.source, "duplicates", "") == "keep" and record.splits.keys() - raw_dataset.targets.keys()
        remedy = ": `source.duplicates: together` draws equal samples for one split" if kept else ""
        print(f"prepare: samples with equal inputs are in two splits ({', '.join(shared)}){remedy}")
    return record


def survey(params: PrepareParams, *, workers: int | None, quick: bool = False) -> tuple[RawDataset, dict[str, NDArray[np.str_]]]:
    """Return the dataset, and a dict that says into which split each of its samples goes.

    The dict maps each split of the source to an array with the name of a split for each sample. Samples of train may go to valid or test.
    No image is decoded here. `workers` is the number of threads or processes that decode images later; None means one for each usable CPU.
    If `quick`, the splits are drawn in another order, for which nothing needs to be read.
    """
    source = params.source
    source.refuse_missing()
    raw_dataset = source.open(workers=workers or limits.usable_cpus())
    raw_dataset = replace(raw_dataset, task=raw_dataset.task.with_positive(getattr(source, "positive_class", None)))
    raw_dataset.task.refuse_unlearnable(raw_dataset.targets[TRAIN], f"{source.root}: train")
    assigned = split.assign(
        raw_dataset.targets,
        raw_dataset.task,
        valid=split.Fold(source.fold, source.folds) if source.folds else source.valid,
        test=source.test,
        seed=source.seed,
        keys=None if quick else raw_dataset.drawing_keys,
        together=raw_dataset.together,
        by_position=not source.divides and getattr(source, "divide", "") == "position",
    )
    if not quick:  # else, the splits are others
        drawn = raw_dataset.targets[TRAIN][assigned[TRAIN] == TRAIN]
        raw_dataset.task.refuse_unlearnable(drawn, f"{source.root}: train as drawn by source.seed {source.seed} (another may do)")
    return raw_dataset, assigned
