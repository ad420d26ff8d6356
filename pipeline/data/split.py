"""Assigns samples to splits. Splits of the source are kept; missing splits are drawn from train, stratified, by the seed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.raw_dataset import TEST, TRAIN, VALID
from pipeline.refusal import Refusal
from pipeline.seeding import generator
from pipeline.spec import Targets

Integers = NDArray[np.int64]


def assign(targets: Mapping[str, NDArray[Any]], task: Targets, *, valid: float, test: float, seed: int) -> dict[str, NDArray[np.str_]]:
    """Assign every sample to train, valid or test. Return a dict from each split of the source to the names of the splits to which its
    samples are assigned, one per sample.

    `targets` maps each split of the source to its targets, which `task` describes. The shares `valid` and `test` apply only to splits that
    the source does not have. Such a split is drawn from the train samples: it gets the same share of each stratum, for example of each
    class. If the share is 0, there is no such split.

    Raises Refusal if the source has no test split and `test` is 0, or if a stratum is too small to be divided.
    """
    assigned = {split: np.full(len(numbers), split, dtype="<U5") for split, numbers in targets.items()}
    shares = {split: share for split, share in {TEST: test, VALID: valid}.items() if split not in targets}
    if TEST not in targets and not test:
        raise Refusal(
            "source.test: the dataset has no test split of its own: write the share of the train samples to use for it, such as `source.test: 0.2`"
        )
    strata = task.strata(targets[TRAIN])
    for split, share in shares.items():
        if share:
            free = assigned[TRAIN] == TRAIN
            refuse_small_strata(strata[free], share, split=split, task=task)
            assigned[TRAIN][draw(strata, share, seed=seed, split=split, free=free)] = split
    return assigned


def draw(strata: Integers, share: float, *, seed: int, split: str, free: NDArray[np.bool_]) -> Integers:
    """Draw samples for `split`: from each stratum, the share `share` of its free samples, and at least one. Return their sorted positions.

    `strata` contains the stratum of each sample. `free` is True for the samples that may be drawn.
    """
    chosen = []
    for number in np.unique(strata):
        candidates = np.flatnonzero((strata == number) & free)
        chosen.append(generator(seed, "split", split, int(number)).permutation(candidates)[: count(share, len(candidates))])
    return np.sort(np.concatenate(chosen))


def count(share: float, candidates: int) -> int:
    return max(1, round(share * candidates))


def refuse_small_strata(strata: Integers, share: float, *, split: str, task: Targets) -> None:
    """Raise Refusal if a stratum is too small to have samples both in train and in `split`. `strata` has the stratum of each sample."""
    for number, candidates in zip(*np.unique(strata, return_counts=True), strict=True):
        if count(share, candidates) >= candidates:
            raise Refusal(
                f"source.{split}: {task.stratum_name(number)} has too few samples ({candidates}) to divide between {split} and train: "
                f"a share of {share} leaves none for train: write a smaller share or, if there is only one sample, add another"
            )
