"""The prepared data on disk: what is written is what is read, and anything else is refused."""

import json
import re
import tracemalloc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from pipeline.core import untrusted
from pipeline.core.prepared import Prepared, sample_keys, shared_samples
from pipeline.core.raw_dataset import TEST, TRAIN, VALID, RawDataset, SampleBlock
from pipeline.core.refusal import Refusal
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.writer import write
from pipeline.tasks.classification.targets import ClassTargets

RNG = np.random.default_rng(0)
INPUTS = RNG.integers(0, 256, (60, 5, 4, 3), dtype=np.uint8)
TARGETS = np.arange(60) % 3
ASSIGNED = np.array([TRAIN, TRAIN, TRAIN, VALID, VALID, VALID, TEST, TEST, TEST, TRAIN, TRAIN, TRAIN] * 5)


def raw_dataset(*, size=7, missing=()):
    """The samples in blocks, but for those that are `missing` as if corrupt."""

    def blocks():
        for start in range(0, len(INPUTS), size):
            positions = np.array([place for place in range(start, min(start + size, len(INPUTS))) if place not in missing], dtype=np.int64)
            yield SampleBlock(TRAIN, positions, INPUTS[positions])

    return RawDataset(ClassTargets(classes=("a", "b", "c")), Statistics((5, 4, 3)), {TRAIN: TARGETS}, blocks)


def described(*, channels, classes):
    inputs = {"kind": "image", "height": 5, "width": 4, "channels": channels, "mean": [0] * channels, "std": [1] * channels}
    return {"inputs": inputs, "targets": {"kind": "classification", "classes": classes}}


def written(folder, **options):
    return write(raw_dataset(**options), {TRAIN: ASSIGNED}, folder)


def test_what_is_written_is_what_is_read(tmp_path):
    written(tmp_path)
    prepared = Prepared.open(tmp_path)
    for name in (TRAIN, VALID, TEST):
        assert np.array_equal(prepared.split(name).inputs, INPUTS[name == ASSIGNED])
        assert np.array_equal(prepared.split(name).targets, TARGETS[name == ASSIGNED])
    assert len(prepared.train) == 30
    assert prepared.spec.targets.classes == ("a", "b", "c")
    assert prepared.spec.inputs.row_shape == (5, 4, 3)


def test_the_statistics_are_those_of_train(tmp_path):
    spec = written(tmp_path).spec
    train = INPUTS[ASSIGNED == TRAIN] / 255
    assert np.allclose(spec.inputs.mean, train.mean((0, 1, 2)), rtol=1e-12)
    assert np.allclose(spec.inputs.std, train.std((0, 1, 2)), rtol=1e-12)


def test_corrupt_samples_are_counted_and_left_out(tmp_path):
    record = written(tmp_path, missing={0, 9, 3})
    assert {name: (split.samples, split.left_out) for name, split in record.splits.items()} == {
        TRAIN: (28, 2),
        VALID: (14, 1),
        TEST: (15, 0),
    }
    assert np.array_equal(Prepared.open(tmp_path).train.inputs, INPUTS[np.setdiff1d(np.flatnonzero(ASSIGNED == TRAIN), [0, 9])])


def test_samples_with_equal_inputs_in_two_splits_are_counted_without_the_corrupt_ones(tmp_path, monkeypatch):
    """Samples 0 and 9 are in train, 3 in valid, 6 to 8 in test; 9 is corrupt."""
    inputs = INPUTS.copy()
    inputs[[3, 6, 7]] = inputs[0]
    inputs[8] = inputs[9]
    monkeypatch.setitem(globals(), "INPUTS", inputs)
    record = written(tmp_path, missing={9})
    assert {name: split.also_in for name, split in record.splits.items()} == {TRAIN: {}, VALID: {TRAIN: 1}, TEST: {TRAIN: 2, VALID: 2}}
    assert shared_samples(record.splits) == [
        "1 of 15 samples of valid in train",
        "2 of 15 samples of test in train",
        "2 of 15 samples of test in valid",
    ]


def test_the_key_of_each_row_is_kept_in_the_order_of_the_rows(tmp_path):
    def keys(name):
        return [json.loads(line) for line in (tmp_path / f"{name}-keys.jsonl").read_text().splitlines()]

    written(tmp_path, missing={0, 9, 3})
    assert keys(TRAIN) == [f"train:{place}" for place in np.flatnonzero(ASSIGNED == TRAIN) if place not in (0, 9)]
    named = [f"a\n{place}\udcff.png" for place in range(60)]
    write(replace(raw_dataset(), sample_keys=lambda: {TRAIN: named}), {TRAIN: ASSIGNED}, tmp_path)
    assert {name: keys(name) for name in (TRAIN, VALID, TEST)} == {
        name: [named[place] for place in np.flatnonzero(name == ASSIGNED)] for name in (TRAIN, VALID, TEST)
    }
    count = np.count_nonzero(ASSIGNED == TEST)
    assert sample_keys(tmp_path, TEST, count) == keys(TEST)
    with pytest.raises(Refusal, match=r"test-keys\.jsonl: cannot be read"):
        sample_keys(tmp_path, TEST, count + 1)
    (tmp_path / "test-keys.jsonl").unlink()
    assert sample_keys(tmp_path, TEST, count) is None


def test_losing_a_whole_class_or_split_is_refused_and_leaves_no_prepared_data(tmp_path):
    written(tmp_path)
    with pytest.raises(Refusal, match="train without its corrupt samples has no samples of b"):
        written(tmp_path, missing=set(np.flatnonzero(TARGETS == 1)[np.flatnonzero(TARGETS == 1) % 12 % 9 < 3]))
    with pytest.raises(Refusal, match="every sample of the valid split is corrupt"):
        written(tmp_path, missing=set(np.flatnonzero(ASSIGNED == VALID)))
    with pytest.raises(Refusal, match=r"spec\.json: is missing: run `dvc repro prepare`"):
        Prepared.open(tmp_path)


def test_a_failure_in_the_middle_leaves_no_prepared_data(tmp_path):
    written(tmp_path)

    def failing():
        yield next(raw_dataset().blocks())
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write(replace(raw_dataset(), blocks=failing), {TRAIN: ASSIGNED}, tmp_path)
    assert not (tmp_path / "spec.json").exists()


def test_splits_of_an_earlier_time_do_not_stay(tmp_path):
    written(tmp_path)
    write(raw_dataset(), {TRAIN: np.full(60, TRAIN)}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spec.json", "train-inputs.npy", "train-keys.jsonl", "train-targets.npy"]
    with pytest.raises(Refusal, match=r"the prepared data has no valid split: set source\.valid"):
        Prepared.open(tmp_path).split(VALID)


def test_blocks_are_dropped_as_soon_as_they_are_stored(tmp_path):
    """100 MB pass through: while one block is made, at most one other is alive."""
    dropped: list[int] = []

    def blocks():
        for number in range(100):
            inputs = np.full((1, 1024, 1024, 1), number, np.uint8)
            weakref.finalize(inputs, dropped.append, number)
            assert number - len(dropped) <= 1
            yield SampleBlock(TRAIN, np.array([number]), inputs)

    source = RawDataset(ClassTargets(classes=("a", "b")), Statistics((1024, 1024, 1)), {TRAIN: np.arange(100) % 2}, blocks)
    tracemalloc.start()
    write(source, {TRAIN: np.full(100, TRAIN)}, tmp_path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 16 * 2**20


def test_training_cannot_write_into_the_prepared_data(tmp_path):
    written(tmp_path)
    before = (tmp_path / "train-inputs.npy").read_bytes()
    Prepared.open(tmp_path).train.inputs[:] = 0
    assert (tmp_path / "train-inputs.npy").read_bytes() == before


def test_a_changed_byte_is_noticed(tmp_path):
    written(tmp_path)
    path = tmp_path / "valid-inputs.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Refusal, match=r"valid-inputs\.npy: does not match its digest in spec\.json: run `dvc repro -f prepare`"):
        Prepared.open(tmp_path)
    assert Prepared.open(tmp_path, verify=False).digest
    path.unlink()
    with pytest.raises(Refusal, match=r"valid-inputs\.npy: cannot be read"):
        Prepared.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "another-2"}, r"does not have the format pipeline-prepared-4 \(format: .*: run `dvc repro -f prepare`"),
        (
            {"spec": described(channels=3, classes=["a", "b", "c"]) | {"targets": {"kind": "unknown"}}},
            "there is no task 'unknown': choose one of classification, language_modeling",
        ),
    ],
)
def test_prepared_data_of_another_format_is_refused(tmp_path, change, message):
    written(tmp_path)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Refusal, match=message):
        Prepared.open(tmp_path)
    path.write_text(json.dumps(dict.fromkeys(map(str, range(untrusted.MOST_KEYS + 1)))))
    with pytest.raises(Refusal, match=r"spec\.json: cannot be read .*Has more than"):
        Prepared.open(tmp_path)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({TRAIN: TARGETS, "val": TARGETS}, "source.name: this source returns the splits train, val: correct its `open`: it must return"),
        ({}, "source.name: this source returns the splits none"),
        (
            {TRAIN: TARGETS / 2},
            r"source.name: in this source, the array of targets of train has float64 (60,), not int64 (60,): correct its `open`",
        ),
        ({TRAIN: TARGETS.tolist()}, "source.name: this source returns the targets of train as a list: return a NumPy array"),
        ({TRAIN: TARGETS, TEST: TARGETS + 1}, "source.name: test has targets from 1 to 3, but the numbers of its 3 classes are 0 to 2"),
        ({TRAIN: TARGETS[:, None]}, "source.name: in this source, the array of targets of train has int64 (60, 1), not int64 (60,)"),
    ],
)
def test_splits_and_targets_that_a_source_may_not_return_are_refused(targets, message):
    with pytest.raises(Refusal, match=f"^{re.escape(message)}"):
        replace(raw_dataset(), targets=targets)


ASCEND = "in this source, the positions in the blocks of train do not ascend from 0 to 59: correct its"


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(TRAIN, range(60), INPUTS / 255)], "a block of train has float64 (60, 5, 4, 3), not uint8 (60, 5, 4, 3): correct its `blocks`"),
        ([(TRAIN, range(60), INPUTS[1:])], "a block of train has uint8 (59, 5, 4, 3), not uint8 (60, 5, 4, 3): correct its `blocks`"),
        ([("training", range(60), INPUTS)], "source has a block of 'training', but no targets for it: correct its `blocks`"),
        ([(TRAIN, range(30), INPUTS[:30])] * 2, ASCEND),
        ([(TRAIN, range(59), INPUTS[:59]), (TRAIN, [60], INPUTS[:1])], ASCEND),
        ([(TRAIN, [0, 0], INPUTS[:2])], ASCEND),
    ],
    ids=["dtype", "number", "split", "restart", "beyond", "twice"],
)
def test_blocks_that_a_source_may_not_yield_are_refused(tmp_path, blocks, message):
    source = replace(raw_dataset(), blocks=lambda: (SampleBlock(split, np.array(at), inputs) for split, at, inputs in blocks))
    with pytest.raises(Refusal, match=rf"^source\.name: .*{re.escape(message)}"):
        write(source, {TRAIN: ASSIGNED}, tmp_path)
