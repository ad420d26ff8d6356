"""Draws stratified splits from the seed."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.raw_dataset import TEST, TRAIN, VALID
from pipeline.refusal import Refusal
from pipeline.seeding import generator

Targets = NDArray[np.int64]


def assign(
    targets: Mapping[str, Targets], *, classes: tuple[str, ...], valid: float, test: float, seed: int
) -> dict[str, NDArray[np.str_]]:
    """Return the split of each sample: for each split of the source, an array of split names beside its targets.

    A split that the source provides is kept, and its share is unused. A split that it does not provide is drawn from every class of train.
    Raises Refusal where the source has no test split and its share is 0, or where a class is too small to be split.
    """
    assigned = {split: np.full(len(numbers), split, dtype="<U5") for split, numbers in targets.items()}
    shares = {split: share for split, share in {TEST: test, VALID: valid}.items() if split not in targets}
    if TEST not in targets and not test:
        raise Refusal("source.test: the dataset brings no test split: write the share to keep for it, such as `test: 0.2`")
    for split, share in shares.items():
        if share:
            free = assigned[TRAIN] == TRAIN
            refuse_small_classes(targets[TRAIN][free], share, split=split, classes=classes)
            assigned[TRAIN][draw(targets[TRAIN], share, seed=seed, split=split, free=free)] = split
    return assigned


def draw(targets: Targets, share: float, *, seed: int, split: str, free: NDArray[np.bool_]) -> Targets:
    """Draw a share of the free samples of each class, at least one per class. Return their positions, sorted."""
    chosen = []
    for number in np.unique(targets):
        candidates = np.flatnonzero((targets == number) & free)
        chosen.append(generator(seed, "split", split, int(number)).permutation(candidates)[: count(share, len(candidates))])
    return np.sort(np.concatenate(chosen))


def count(share: float, candidates: int) -> int:
    return max(1, round(share * candidates))


def refuse_small_classes(targets: Targets, share: float, *, split: str, classes: tuple[str, ...]) -> None:
    """Raise Refusal where a class is too small to have samples both in train and in the split."""
    for number, candidates in zip(*np.unique(targets, return_counts=True), strict=True):
        if count(share, candidates) >= candidates:
            raise Refusal(
                f"source.{split}: class {classes[number]} has {candidates} of its samples left, too few to keep a share of {share} "
                f"for {split} and some for train: add samples, lower the share, or remove the class"
            )
