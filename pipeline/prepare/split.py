"""Assigns samples to splits. Splits of the source are kept; missing splits are drawn from train, stratified, by `source.seed`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.seeding import derive, generator
from pipeline.core.spec import Targets
from pipeline.core.untrusted import shown
from pipeline.prepare.rows import digests

Integers = NDArray[np.int64]
Ranks = NDArray[np.uint64]


class Fold(NamedTuple):
    """The part `number`, counted from 0, of the samples, if they are divided into `folds` equal parts."""

    number: int
    folds: int


def assign(
    targets: Mapping[str, NDArray[Any]],
    task: Targets,
    *,
    valid: float | Fold,
    test: float,
    seed: int,
    keys: Callable[[], Iterable[bytes]] | None = None,
    together: bool = False,
    by_position: bool = False,
) -> dict[str, NDArray[np.str_]]:
    """Assign every sample to train, valid or test.

    Returns a dict with an array for each split of the source (train, and possibly valid and test). The array contains one name per sample
    of this split: the split to which the sample is assigned.

    `targets` maps each split of the source to the targets of its samples, which `task` describes. A split of the source is kept. If the
    source has no test or valid split, the missing split is drawn at random from the train samples, test before valid. `test` and `valid`
    are the shares to draw of the samples still in train, the same share of each stratum, for example of each class. If a share is 0,
    nothing is drawn. If `valid` is a fold, this part of each stratum is the validation split: each sample that is not drawn for the test is
    in exactly one of the folds.

    `keys` returns the key of each train sample: its contents, its name or its group. It is called only if a split is drawn. The samples are then drawn in the order of a hash of
    `seed` and key, so that one more sample moves at most one other at each boundary between splits. If `keys` is None, the draw depends on
    the number of samples. If `together`, samples with equal keys go to the same split, and belong to the stratum of the first of them.

    If `by_position`, nothing is drawn: the last samples of train are the test split, and those before them the validation split.

    The last sample of a stratum stays in train. Raises Refusal if the source has no test split and `test` is 0, if nothing can be drawn, or if a
    stratum has too few samples to give one to each fold.
    """
    assigned = {split: np.full(len(numbers), split, dtype="<U5") for split, numbers in targets.items()}
    shares = {split: share for split, share in {TEST: test, VALID: valid}.items() if share and split not in targets}
    if TEST not in targets and not test:
        remedy = "write the share of the train samples to use for it, such as `source.test: 0.2`"
        raise Refusal(f"source.test: the dataset has no test split of its own: {remedy}")
    if isinstance(valid, Fold) and VALID in targets:
        problem = "the dataset has a validation split of its own, which stays as it is"
        raise Refusal(f"source.folds: {problem}: write null; to train on folds, move its samples to the train split")
    if by_position:
        return assigned | {TRAIN: divided_by_position(assigned[TRAIN], shares)}
    classes = strata = task.strata(targets[TRAIN])
    ranks = ranks_of(keys(), seed) if keys and shares else None
    if together and ranks is not None:
        _, first, group = np.unique(ranks, return_index=True, return_inverse=True)
        strata = strata[first][group]
    for split, share in shares.items():
        free = assigned[TRAIN] == TRAIN
        for number in np.unique(strata):
            candidates = np.flatnonzero((strata == number) & free)
            if ranks is None:
                candidates = generator(seed, "split", split, int(number)).permutation(candidates)
            else:
                candidates = candidates[np.argsort(ranks[candidates], kind="stable")]
            assigned[TRAIN][part(share, candidates, ranks if together else None, name=task.stratum_name(number))] = split
        if not (assigned[TRAIN] == split).any():
            example = f", such as {shown(task.stratum_name(int(classes[0])), 60)}" if len(classes) else ""
            why = f"because train has only one sample left of each class{example}: add samples, or choose another label"
            raise Refusal(f"source.{split}: no sample can be drawn for {split}, {why}")
        refuse_emptied_strata(classes, assigned[TRAIN] == TRAIN, split=split, task=task)
    return assigned


def divided_by_position(assigned: NDArray[np.str_], shares: Mapping[str, float | Fold]) -> NDArray[np.str_]:
    """Return the splits of the train samples, of which the last go to the first of `shares`, and those before them to the next."""
    divided = assigned.copy()
    for split, share in shares.items():
        assert not isinstance(share, Fold)  # the settings refuse folds
        free = np.flatnonzero(divided == TRAIN)
        divided[free[len(free) - count(share, len(free)) :]] = split
    return divided


def ranks_of(keys: Iterable[bytes], seed: int) -> Ranks:
    """Return a number for each key, a hash of `seed` and the key. Equal keys have equal numbers."""
    return digests(keys, b"%d/" % derive(seed, "split"))


def part(share: float | Fold, candidates: Integers, groups: Ranks | None, *, name: str) -> Integers:
    """Return those of the samples `candidates` of the stratum `name` that are drawn: a share or a fold of them. For `groups`, see `leading`.

    For a fold, they are divided in their order into parts as equal as possible, each of at least one group. The last fold is what the others
    leave, so each sample is in one fold.
    """
    if not isinstance(share, Fold):
        return leading(candidates, groups, count(share, len(candidates)))
    different = len(candidates) if groups is None else len(np.unique(groups[candidates]))
    if different < share.folds:
        what = "" if groups is None else " different"
        raise Refusal(
            f"source.folds: {name} has too few{what} samples outside the test split ({different}) for {share.folds} folds, because each fold "
            "validates at least one: write a smaller number, or add samples"
        )
    num_samples, drawn = len(candidates), candidates[:0]
    for number in range(share.number + 1):
        candidates = candidates[~np.isin(candidates, drawn)]
        wanted = round((number + 1) * num_samples / share.folds) - (num_samples - len(candidates))
        drawn = leading(candidates, groups, wanted, left=share.folds - number - 1)
    return drawn


def leading(candidates: Integers, groups: Ranks | None, wanted: int, *, left: int = 0) -> Integers:
    """Return the first `wanted` of the samples `candidates`.

    If `groups` has a number for each train sample, samples with equal numbers are drawn all or not at all, and stand one after the other in
    `candidates`. Then return at most `wanted` samples, as many as the groups allow. A group that is too large is left out. If each of them
    is, and `wanted` is not 0, the smallest one is returned. At least `left` groups are not drawn.
    """
    if groups is None:
        return candidates[:wanted]
    starts = np.flatnonzero(np.diff(groups[candidates], prepend=groups[candidates[:1]] + 1))
    sizes: Integers = np.diff(starts, append=len(candidates))
    chosen, missing, num_chosen = np.zeros(len(sizes), bool), wanted, 0
    for number, size in enumerate(sizes.tolist()):
        if size <= missing and num_chosen < len(sizes) - left:
            chosen[number] = True
            missing, num_chosen = missing - size, num_chosen + 1
    if wanted and not num_chosen:
        chosen[sizes.argmin()] = True
    drawn: Integers = candidates[np.repeat(chosen, sizes)]
    return drawn


def count(share: float, candidates: int) -> int:
    """Return how many of the `candidates` of a stratum are drawn: at least one, unless it is the last, which stays in train."""
    return min(max(1, round(share * candidates)), max(0, candidates - 1))


def refuse_emptied_strata(strata: Integers, kept: NDArray[np.bool_], *, split: str, task: Targets) -> None:
    """Raise Refusal if a stratum has no sample left in train, because equal samples were drawn together. `kept` is True for those in train."""
    for number in np.setdiff1d(strata, strata[kept]):
        raise Refusal(
            f"source.duplicates: {task.stratum_name(number)} has too few different samples or groups: those that are equal were drawn for {split} "
            "together, and none is left for train: remove the duplicates, or write `source.duplicates: keep` and no source.group_column"
        )
