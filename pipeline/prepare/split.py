"""Assigns samples to splits. Splits of the source are kept; missing splits are drawn from train, stratified, by `source.seed`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.core.seeding import derive, generator
from pipeline.core.spec import Targets

Integers = NDArray[np.int64]
Ranks = NDArray[np.uint64]


def assign(
    targets: Mapping[str, NDArray[Any]],
    task: Targets,
    *,
    valid: float,
    test: float,
    seed: int,
    keys: Callable[[], Sequence[bytes]] | None = None,
    together: bool = False,
) -> dict[str, NDArray[np.str_]]:
    """Assign every sample to train, valid or test.

    Returns a dict with an array for each split of the source (train, and possibly valid and test). The array contains one name per sample
    of this split: the split to which the sample is assigned.

    `targets` maps each split of the source to the targets of its samples, which `task` describes. A split of the source is kept. If the
    source has no test or valid split, the missing split is drawn at random from the train samples, test before valid. `test` and `valid`
    are the shares to draw of the samples still in train, the same share of each stratum, for example of each class. If a share is 0,
    nothing is drawn.

    `keys` returns the key of each train sample. It is called only if a split is drawn. The samples are then drawn in the order of a hash of
    `seed` and key, so that one more sample moves at most one other at each boundary between splits. If `keys` is None, the draw depends on
    the number of samples. If `together`, samples with equal keys go to the same split, and belong to the stratum of the first of them.

    The last sample of a stratum stays in train. Raises Refusal if the source has no test split and `test` is 0, or if nothing can be drawn.
    """
    assigned = {split: np.full(len(numbers), split, dtype="<U5") for split, numbers in targets.items()}
    shares = {split: share for split, share in {TEST: test, VALID: valid}.items() if split not in targets}
    if TEST not in targets and not test:
        raise Refusal(
            "source.test: the dataset has no test split of its own: write the share of the train samples to use for it, such as `source.test: 0.2`"
        )
    classes = strata = task.strata(targets[TRAIN])
    ranks = ranks_of(keys(), seed) if keys and any(shares.values()) else None
    if together and ranks is not None:
        _, first, group = np.unique(ranks, return_index=True, return_inverse=True)
        strata = strata[first][group]
    for split, share in shares.items():
        if share:
            free = assigned[TRAIN] == TRAIN
            if ranks is None:
                drawn = draw(strata, share, seed=seed, split=split, free=free)
            else:
                drawn = draw_in_order(strata, share, ranks, free=free, together=together)
            if not len(drawn):
                raise Refusal(f"source.{split}: no sample can be drawn for {split}, because train has one of each class: add samples")
            assigned[TRAIN][drawn] = split
            refuse_emptied_strata(classes, assigned[TRAIN] == TRAIN, split=split, task=task)
    return assigned


def ranks_of(keys: Sequence[bytes], seed: int) -> Ranks:
    """Return a number for each key, a hash of `seed` and the key. Equal keys have equal numbers."""
    prefix = b"%d/" % derive(seed, "split")
    return np.frombuffer(b"".join(hashlib.sha256(prefix + key).digest()[:8] for key in keys), ">u8").astype(np.uint64)


def draw(strata: Integers, share: float, *, seed: int, split: str, free: NDArray[np.bool_]) -> Integers:
    """Draw train samples for the split `split`, and return their sorted positions in `strata`.

    `strata` contains the stratum of each train sample, for example its class. `free` is True for the samples that are not yet drawn for
    another split. From each stratum, the share `share` of the free samples is drawn, as `count` says.
    """
    chosen = []
    for number in np.unique(strata):
        candidates = np.flatnonzero((strata == number) & free)
        chosen.append(generator(seed, "split", split, int(number)).permutation(candidates)[: count(share, len(candidates))])
    return np.sort(np.concatenate(chosen))


def draw_in_order(strata: Integers, share: float, ranks: Ranks, *, free: NDArray[np.bool_], together: bool) -> Integers:
    """Return the positions of the train samples with the lowest `ranks`: as many of each stratum as `draw` draws.

    If `together`, samples with equal ranks are drawn all or not at all.
    """
    order, chosen = np.argsort(ranks, kind="stable"), []
    order = order[free[order]]
    ordered = strata[order]
    for number in np.unique(strata):
        candidates = order[ordered == number]
        wanted = count(share, len(candidates))
        chosen.append(whole_groups(candidates, ranks, wanted) if together else candidates[:wanted])
    return np.concatenate(chosen)


def whole_groups(candidates: Integers, ranks: Ranks, wanted: int) -> Integers:
    """Return at most `wanted` of the samples `candidates`, in whole groups of equal ranks, and as many as the groups allow.

    `candidates` are in the order of `ranks`. A group that is too large is left out. If each is, and any is wanted, the smallest one is returned.
    """
    groups = np.split(candidates, np.flatnonzero(np.diff(ranks[candidates])) + 1)
    chosen, missing = list[Integers](), wanted
    for group in groups:
        if len(group) <= missing:
            chosen.append(group)
            missing -= len(group)
    return np.concatenate(chosen or [min(groups, key=len) if wanted else candidates[:0]])


def count(share: float, candidates: int) -> int:
    """Return how many of the `candidates` of a stratum are drawn: at least one, unless it is the last, which stays in train."""
    return min(max(1, round(share * candidates)), max(0, candidates - 1))


def refuse_emptied_strata(strata: Integers, kept: NDArray[np.bool_], *, split: str, task: Targets) -> None:
    """Raise Refusal if a stratum has no sample left in train, because equal samples were drawn together. `kept` is True for those in train."""
    for number in np.setdiff1d(strata, strata[kept]):
        raise Refusal(
            f"source.duplicates: {task.stratum_name(number)} has too few different samples: those that are equal were drawn for {split} "
            "together, and none is left for train: remove the duplicates, or write `source.duplicates: keep`"
        )
