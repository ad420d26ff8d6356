"""Assigns samples to splits: keeps the splits of the source, and draws the others, stratified, from the seed."""

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
    """Return, for each split of the source, an array with the name of the split to which each sample is assigned, in the order of `targets`.

    A split that the source provides is kept; its share, `valid` or `test`, is then unused. For any other split, its share of every
    stratum of train, such as a class, is drawn; a share of 0 means that there is no such split.

    Raises Refusal if the source has no test split and `test` is 0, or if a stratum is too small to be divided.
    """
    assigned = {split: np.full(len(numbers), split, dtype="<U5") for split, numbers in targets.items()}
    shares = {split: share for split, share in {TEST: test, VALID: valid}.items() if split not in targets}
    if TEST not in targets and not test:
        raise Refusal("source.test: the dataset has no test split of its own: write the share of train to split off, such as `test: 0.2`")
    strata = task.strata(targets[TRAIN])
    for split, share in shares.items():
        if share:
            free = assigned[TRAIN] == TRAIN
            refuse_small_strata(strata[free], share, split=split, task=task)
            assigned[TRAIN][draw(strata, share, seed=seed, split=split, free=free)] = split
    return assigned


def draw(strata: Integers, share: float, *, seed: int, split: str, free: NDArray[np.bool_]) -> Integers:
    """Draw `share` of those samples of each stratum that `free` marks, at least one per stratum. Return the sorted positions of the drawn samples."""
    chosen = []
    for number in np.unique(strata):
        candidates = np.flatnonzero((strata == number) & free)
        chosen.append(generator(seed, "split", split, int(number)).permutation(candidates)[: count(share, len(candidates))])
    return np.sort(np.concatenate(chosen))


def count(share: float, candidates: int) -> int:
    return max(1, round(share * candidates))


def refuse_small_strata(strata: Integers, share: float, *, split: str, task: Targets) -> None:
    """Raise Refusal if a stratum is too small to have samples both in train and in `split`."""
    for number, candidates in zip(*np.unique(strata, return_counts=True), strict=True):
        if count(share, candidates) >= candidates:
            raise Refusal(
                f"source.{split}: {task.stratum_name(number)} has too few samples ({candidates}) to divide between {split} and train: "
                f"a share of {share} leaves none for train: add samples, or lower the share if there are two or more"
            )
