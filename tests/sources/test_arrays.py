"""Arrays in `.npz` and `.npy`: read block by block, never unpickled, and refused with what to write instead."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal
from pipeline.sources import arrays

from .pictures import gathered

RNG = np.random.default_rng(0)
INPUTS = RNG.integers(0, 256, (9, 4, 5, 3), dtype=np.uint8)
TARGETS = np.arange(9) % 3


def settings(root: Path) -> arrays.Settings:
    return arrays.Settings(name="arrays", root=root, valid=0.0, test=0.0, seed=1, folds=None, fold=0, duplicates="keep")


def stored(root: Path, form: str, content: dict[str, np.ndarray]) -> Path:
    root.mkdir(exist_ok=True)
    if form == "folder":
        for name, array in content.items():
            np.save(root / f"{name}.npy", array)
        return root
    {"npz": np.savez, "compressed": np.savez_compressed}[form](root / "all.npz", **content)
    return root / "all.npz"


def refusal(root: Path) -> str:
    with pytest.raises(Refusal) as caught:
        gathered(settings(root).open(workers=1))
    return str(caught.value)


@pytest.mark.parametrize("form", ["folder", "npz", "compressed"])
def test_splits_are_read_as_they_were_saved(tmp_path, monkeypatch, form):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 200)  # three images
    content = {}
    for index, split in enumerate((TRAIN, VALID, TEST)):
        content |= {f"{split}-inputs": INPUTS[index:], f"{split}_targets": TARGETS[index:].astype(f">i{2**index}")}
    raw_dataset = settings(stored(tmp_path / "x", form, content)).open(workers=1)
    assert raw_dataset.task.classes == ("0", "1", "2")
    assert raw_dataset.statistics.row_shape == (4, 5, 3)
    assert max(len(block.inputs) for block in raw_dataset.blocks()) == 3
    found = gathered(raw_dataset)
    for index, split in enumerate((TRAIN, VALID, TEST)):
        assert np.array_equal(found[split], INPUTS[index:])
        assert np.array_equal(raw_dataset.targets[split], TARGETS[index:])
        assert raw_dataset.targets[split].dtype == np.int64


def test_the_keys_of_equal_images_are_equal(tmp_path):
    root = stored(tmp_path / "x", "npz", {"inputs": INPUTS[[0, 1, 0]], "targets": TARGETS[:3]})
    assert settings(root).open(workers=1).drawing_keys is None
    raw_dataset = settings(root).model_copy(update={"duplicates": "together"}).open(workers=1)
    first, second, third = raw_dataset.drawing_keys()
    assert raw_dataset.together
    assert first == third != second


def test_grey_images_need_no_channel_axis(tmp_path):
    raw_dataset = settings(stored(tmp_path, "npz", {"inputs": INPUTS[..., 0], "targets": TARGETS})).open(workers=1)
    assert raw_dataset.statistics.row_shape == (4, 5, 1)
    assert np.array_equal(gathered(raw_dataset)[TRAIN], INPUTS[..., :1])


def test_names_of_classes_come_from_an_array_or_a_file(tmp_path):
    content = {"inputs": INPUTS, "targets": TARGETS}
    named = stored(tmp_path / "a", "npz", content | {"classes": np.array(["cat", "dog", "eel"])})
    assert settings(named).open(workers=1).task.classes == ("cat", "dog", "eel")
    folder = stored(tmp_path / "b", "folder", content)
    (folder / "classes.txt").write_text("kaktus\nrose\nölbaum\n\n", encoding="utf-8")
    assert settings(folder).open(workers=1).task.classes == ("kaktus", "rose", "ölbaum")
    (folder / "classes.txt").write_bytes(b"\xff\n")
    assert "is not UTF-8" in refusal(folder)


GOOD = {"inputs": INPUTS, "targets": TARGETS}
WRONG = {
    "float inputs": ({"inputs": INPUTS / 255}, "has dtype float64: save uint8 values from 0 to 255"),
    "flat inputs": ({"inputs": INPUTS.reshape(9, -1)}, "has shape (9, 60): save (samples, height, width)"),
    "channels first": (
        {"inputs": np.zeros((9, 3, 32, 32), np.uint8)},
        "must be the channels, at most 16: if the channels are the second axis, save `x.transpose(",
    ),
    "no pixels": ({"inputs": np.zeros((9, 0, 4), np.uint8)}, "has shape (9, 0, 4)"),
    "lengths": ({"targets": TARGETS[:5]}, "has 9 samples, but there are 5 targets"),
    "float targets": ({"targets": TARGETS * 1.0}, "has shape (9,) and dtype float64: save class numbers"),
    "one-hot targets": ({"targets": np.eye(9, dtype=int)}, "has shape (9, 9) and dtype int64"),
    "negative targets": ({"targets": TARGETS - 1}, "has negative or too large class numbers (-1 to 1): number the classes from 0"),
    "huge targets": ({"targets": np.full(9, 2**63, np.uint64)}, "number the classes from 0"),
    "gaps": ({"targets": TARGETS * 1000}, "has the class number 2000, but train has only 9 samples"),
    "no samples": ({"inputs": INPUTS[:0], "targets": TARGETS[:0]}, "has no samples: add some"),
    "few names": ({"classes": np.array(["a", "b"])}, "has the class number 2, but `classes` has only 2 names"),
    "names twice": ({"classes": np.array(["a", "b", "a"])}, "an empty or repeated name"),
    "numbers as names": (
        {"classes": np.arange(3)},
        "save the class names as a one-dimensional array of text: `np.array([...], dtype=str)`",
    ),
    "records": ({"targets": np.zeros(9, [("a", int)])}, "is not plain numbers or text"),
    "columns": ({"inputs": np.asfortranarray(INPUTS)}, "is in Fortran order: save `numpy.ascontiguousarray(x)`"),
    "unknown names": ({"train-input": INPUTS}, "has an unknown array train-input: remove it, or rename it to one of classes, inputs"),
    "both forms": ({"test-inputs": INPUTS}, "both with and without a split in their names"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_array_is_refused_with_what_to_write(tmp_path, case):
    changes, message = WRONG[case]
    assert message in refusal(stored(tmp_path / "x", "npz", GOOD | changes))


def test_missing_arrays_are_named(tmp_path):
    assert "has no array train-inputs (found: none): add it" in refusal(tmp_path)
    assert "has no array targets (found: inputs): add it" in refusal(stored(tmp_path / "a", "npz", {"inputs": INPUTS}))
    content = {"test-inputs": INPUTS, "test-targets": TARGETS}
    assert "has no array train-inputs" in refusal(stored(tmp_path / "b", "npz", content))
    content = {"train-inputs": INPUTS, "train-targets": TARGETS, "test-inputs": INPUTS[:, 1:], "test-targets": TARGETS}
    assert "images of different shapes [(3, 5, 3), (4, 5, 3)]" in refusal(stored(tmp_path / "c", "npz", content))
    content = {"inputs": INPUTS, "train-inputs": INPUTS, "train_inputs": INPUTS}
    assert "has the same name as" in refusal(stored(tmp_path / "d", "npz", content))


def test_a_damaged_file_is_refused(tmp_path):
    folder = stored(tmp_path, "folder", GOOD)
    whole = (folder / "inputs.npy").read_bytes()
    (folder / "inputs.npy").write_bytes(whole[:-1])
    assert "it is truncated or damaged" in refusal(folder)
    (folder / "inputs.npy").write_bytes(b"no array")
    assert "is not an .npy array" in refusal(folder)
    (folder / "inputs.npy").write_bytes(b"\x93NUMPY\x03\x00" + whole[8:])
    assert "its format version is (3, 0)" in refusal(folder)
    (tmp_path / "x.npz").write_bytes(b"no archive")
    assert "is neither a folder of .npy files nor an .npz file" in refusal(tmp_path / "x.npz")


def test_damage_inside_an_npz_is_noticed(tmp_path):
    inputs = RNG.integers(0, 256, (9, 300, 300), dtype=np.uint8)
    path = stored(tmp_path, "npz", GOOD | {"inputs": inputs})
    data = bytearray(path.read_bytes())
    data[data.index(inputs[8].tobytes())] ^= 1
    path.write_bytes(data)
    assert "all.npz: inputs.npy: cannot be read (Bad CRC-32" in refusal(path)


@pytest.mark.parametrize("form", ["folder", "compressed"])
def test_inputs_larger_than_memory_pass_block_by_block(tmp_path, monkeypatch, form):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 2**20)
    root = stored(tmp_path / "x", form, {"inputs": np.zeros((40, 512, 1024), np.uint8), "targets": np.arange(40) % 2})
    tracemalloc.start()
    samples = sum(len(block.inputs) for block in settings(root).open(workers=1).blocks())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert samples == 40
    assert peak_bytes < 6 * 2**20
