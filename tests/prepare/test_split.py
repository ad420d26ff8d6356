"""Splits: seeded, stratified, complete, and refused where they cannot be had."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.prepare import split
from pipeline.prepare.split import Fold
from pipeline.tasks.classification.targets import ClassTargets

CLASSES = tuple("abcde")
targets_of_five_classes = st.lists(st.integers(0, 4), min_size=60, max_size=200).map(lambda more: np.array([*range(5)] * 20 + more))


def assign(targets, *, valid=0.0, test=0.0, seed=1, keys=None, **more):
    task, called = ClassTargets(classes=CLASSES), None if keys is None else lambda: keys
    return split.assign(targets, task, valid=valid, test=test, seed=seed, keys=called, **more)


@settings(max_examples=20, deadline=None)
@given(
    targets=targets_of_five_classes,
    valid=st.floats(0.01, 0.5),
    test=st.floats(0.01, 0.5),
    seed=st.integers(0, 2**40),
    keyed=st.booleans(),
    together=st.booleans(),
)
def test_every_class_gives_its_share_to_every_split(targets, valid, test, seed, keyed, together):
    keys = names(len(targets)) if keyed else None
    assigned = assign({TRAIN: targets}, valid=valid, test=test, seed=seed, keys=keys, together=keyed and together)[TRAIN]
    for number in range(5):
        of_class = assigned[targets == number]
        kept = max(1, round(test * len(of_class)))
        assert (of_class == TEST).sum() == kept
        assert (of_class == VALID).sum() == max(1, round(valid * (len(of_class) - kept)))
        assert (of_class == TRAIN).any()


def test_the_test_split_does_not_depend_on_the_share_for_validation():
    targets = np.arange(500) % 5
    with_valid, without = (assign({TRAIN: targets}, valid=valid, test=0.2)[TRAIN] for valid in (0.3, 0.0))
    assert np.array_equal(with_valid == TEST, without == TEST)


def test_a_split_that_the_source_brings_is_kept():
    targets = {split: np.arange(40) % 4 for split in (TRAIN, VALID, TEST)}
    assigned = assign(targets)
    assert {name: set(names) for name, names in assigned.items()} == {name: {name} for name in targets}
    drawn = assign({TRAIN: targets[TRAIN], TEST: targets[TEST]}, valid=0.5)
    assert set(drawn[TEST]) == {TEST}
    assert (drawn[TRAIN] == VALID).sum() == 20


def test_the_recorded_draw():
    assigned = assign({TRAIN: np.arange(20) % 2}, valid=0.2, test=0.2, seed=7)[TRAIN]
    letters = "".join(name[1] for name in assigned)
    assert letters == "rerrrrereaaraerarrrr", "the splits of every dataset change"
    assert assign({TRAIN: np.arange(20) % 2}, valid=0.2, test=0.2, seed=8)[TRAIN].tolist() != assigned.tolist()


def test_a_missing_test_split_needs_a_share() -> None:
    with pytest.raises(Refusal, match=r"source.test: .* has no test split of its own: write the share .* such as `source.test: 0.2`"):
        assign({TRAIN: np.arange(40) % 4})


@pytest.mark.parametrize("keys", [None, [b"%d.png" % number for number in range(53)]])
@pytest.mark.parametrize("together", [False, True])
def test_the_last_sample_of_a_class_stays_in_train(keys, together):
    targets = np.array([0] * 50 + [1] * 2 + [2])
    assigned = assign({TRAIN: targets}, test=0.9, valid=0.1, keys=keys, together=together)[TRAIN]
    assert [assigned[targets == number].tolist().count(TRAIN) for number in (1, 2)] == [1, 1]
    with pytest.raises(
        Refusal,
        match=r"source.test: no sample can be drawn for test, because train has only one sample left of each class, such as class .*: add samples",
    ):
        assign({TRAIN: np.arange(4)}, test=0.5, keys=keys and keys[:4], together=together)


def names(count):
    return [b"%d.png" % number for number in range(count)]


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 37), (2, 100)])
def test_one_more_sample_moves_at_most_one_other_at_each_boundary(seed, position):
    keys = names(100)
    grown = [*keys[:position], b"another.png", *keys[position:]]
    before, after = (
        dict(
            zip(found, assign({TRAIN: np.zeros(len(found), int)}, valid=0.1, test=0.2, seed=seed, keys=found)[TRAIN].tolist(), strict=True)
        )
        for found in (keys, grown)
    )
    moved = [(before[key], after[key]) for key in keys if before[key] != after[key]]
    assert len(moved) == len(set(moved)) <= 2
    assert sum(TEST in pair for pair in moved) <= 1
    assert sum(TRAIN in pair for pair in moved) <= 1


def test_equal_keys_go_to_one_split_and_the_shares_stay():
    keys = names(200) + names(50) + names(10) * 2
    targets = np.arange(len(keys)) % 2
    assigned = assign({TRAIN: targets}, valid=0.1, test=0.2, keys=keys, together=True)[TRAIN]
    places = {key: {name for name, other in zip(assigned.tolist(), keys, strict=True) if other == key} for key in keys}
    assert all(len(found) == 1 for found in places.values())
    assert [(assigned == name).mean().round(1) for name in (TEST, VALID)] == [0.2, 0.1]


def test_equal_samples_that_would_leave_a_class_without_train_samples_are_refused():
    keys, targets = [*names(20), *[b"same"] * 20], np.array([0] * 20 + [1] * 20)
    with pytest.raises(Refusal, match=r"source.duplicates: class b has too few different samples or groups: .* `source.duplicates: keep`"):
        assign({TRAIN: targets}, test=0.5, keys=keys, together=True)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("folds", [2, 7])
def test_each_sample_outside_the_test_split_is_in_one_fold_and_a_class_gives_every_fold_its_share(keyed, folds):
    targets = {TRAIN: np.array([0] * 41 + [1] * 10)}
    drawn = np.array(
        [assign(targets, test=0.2, valid=Fold(fold, folds), keys=names(51) if keyed else None)[TRAIN] for fold in range(folds)]
    )
    is_test = drawn == TEST
    assert (is_test == is_test[0]).all()
    assert np.array_equal((drawn == VALID).sum(axis=0), ~is_test[0])
    for number in (0, 1):
        sizes = ((drawn == VALID) & (targets[TRAIN] == number)).sum(axis=1)
        assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(drawn[0], assign(targets, test=0.2, valid=1 / folds, keys=names(51) if keyed else None)[TRAIN])


@pytest.mark.parametrize(("sizes", "largest"), [([10, 1, 1], 10), ([5] * 12, 15), ([3, 1, 4, 1, 5, 9, 2, 6], 9)])
def test_a_group_is_in_one_fold_and_every_fold_has_one(sizes, largest):
    keys = [key for key, size in zip(names(len(sizes)), sizes, strict=True) for _ in range(size)]
    folds = min(5, len(sizes))
    own = {TRAIN: np.zeros(len(keys), int), TEST: np.zeros(1, int)}
    drawn = np.array([assign(own, valid=Fold(fold, folds), keys=keys, together=True)[TRAIN] == VALID for fold in range(folds)])
    assert (drawn.sum(axis=0) == 1).all()
    assert 1 <= drawn.sum(axis=1).min() <= drawn.sum(axis=1).max() <= largest
    assert len({(key, fold) for key, fold in zip(keys, drawn.argmax(axis=0), strict=True)}) == len(sizes)


def test_what_cannot_be_divided_into_folds_is_refused():
    two_classes = {TRAIN: np.array([0] * 50 + [1] * 3)}
    with pytest.raises(Refusal, match=r"source.folds: class b has too few samples outside the test split \(2\) for 5 folds"):
        assign(two_classes, test=0.2, valid=Fold(0, 5))
    with pytest.raises(Refusal, match=r"source.folds: class a has too few different samples outside the test split \(3\) for 4 folds"):
        assign({TRAIN: np.zeros(30, int), TEST: np.zeros(1, int)}, valid=Fold(0, 4), keys=[*names(3)] * 10, together=True)
    with pytest.raises(Refusal, match=r"source.folds: the dataset has a validation split of its own"):
        assign({**two_classes, VALID: np.zeros(1, int)}, test=0.2, valid=Fold(0, 2))


def test_by_position_the_last_samples_are_the_test_split_and_those_before_them_the_validation_split():
    assigned = assign({TRAIN: np.arange(20) % 5}, valid=0.25, test=0.2, by_position=True)[TRAIN]
    assert assigned.tolist() == [TRAIN] * 12 + [VALID] * 4 + [TEST] * 4
