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
    """Assign every sample to train, valid or test.

    Returns a dict with an array for each split of the source (train, and possibly valid and test). The array contains one name per sample
    of this split: the split to which the sample is assigned.

    `targets` maps each split of the source to the targets of its samples, which `task` describes. A split of the source is kept. If the
    source has no test or valid split, the missing split is drawn at random from the train samples, test before valid. `test` and `valid`
    are the shares to draw of the samples still in train, the same share of each stratum, for example of each class. If a share is 0,
    nothing is drawn.

    Raises Refusal if the source has no test split and `test` is 0, or if a stratum has too few samples to leave one in train.
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
    """Draw train samples for the split `split`, and return their sorted positions in `strata`.

    `strata` contains the stratum of each train sample, for example its class. `free` is True for the samples that are not yet drawn for
    another split. From each stratum, the share `share` of the free samples is drawn, but at least one sample.
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
                f"source.{split}: {task.stratum_name(number)} has too few samples ({candidates}) to divide between {split} and train, "
                f"because the share {share} leaves none for train: write a smaller share; if there is only one sample, add another"
            )
