"""The stages refuse prepared data and model files that are missing, foreign or damaged, and disks that cannot be written."""

import errno
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.core.environment import Paths
from pipeline.core.params import load
from pipeline.core.prepared import Prepared
from pipeline.core.yaml_document import Document
from pipeline.inference import model_file
from pipeline.train.params import TrainParams
from tests.tools.parameters import Parameters
from tests.train.engine.building import model_of

Refused = Callable[..., list[str]]
MODEL = Path("models/model.safetensors")


@pytest.fixture
def arrays(parameters: Parameters) -> Path:
    """Use twelve tiny images as the source of the project."""
    root = Path("data/raw/tiny.npz")
    root.parent.mkdir()
    inputs = np.arange(12 * 4 * 4, dtype=np.uint8).reshape(12, 4, 4)
    np.savez(root, inputs=inputs, targets=np.arange(12) % 2)
    parameters.section("source", "name: arrays", f"root: {root}", "valid: 0.25", "test: 0.25", "seed: 1", "duplicates: keep")
    parameters.section("model", "name: mlp", "weights: null", "width: 4", "depth: 1", "dropout: 0.0")
    parameters.write()
    return root


@pytest.fixture
def prepared(arrays: Path) -> Path:
    assert main(["prepare"]) == 0
    return Path("data/prepared")


@pytest.fixture
def trained(prepared: Path) -> bytes:
    """Write a model file and return its bytes."""
    params = load(Document.read(Paths().params), TrainParams)
    spec = Prepared.open(prepared).spec
    manifest = model_file.Manifest(params=params.model_dump(mode="json"), spec=spec, precision="fp32", step=1, inputs={}, fingerprint={})
    model = model_of(params.model.build(spec), spec, channels_last=False)
    MODEL.parent.mkdir()
    model_file.export(MODEL, model.network.state_dict(), manifest)
    return MODEL.read_bytes()


def flip(path: Path) -> None:
    """Flip one bit of the last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


SPOILED_DATA: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no folder": (lambda folder: folder.rename("elsewhere"), "spec.json", "is missing: run `dvc repro prepare`"),
    "a flipped bit": (lambda folder: flip(folder / "train-inputs.npy"), "train-inputs.npy", "does not match its digest in spec.json"),
    "a missing array": (lambda folder: (folder / "test-inputs.npy").unlink(), "test-inputs.npy", "run `dvc repro"),
}


@pytest.mark.parametrize("name", SPOILED_DATA)
def test_spoiled_prepared_data_is_refused(prepared: Path, refused: Refused, name: str) -> None:
    spoil, file, words = SPOILED_DATA[name]
    spoil(prepared)
    [said] = refused("train")
    assert said.startswith(f"data/prepared/{file}: ")
    assert words in said
    assert not MODEL.exists()


SPOILED_MODELS: dict[str, tuple[Callable[[], object], str]] = {
    "missing": (MODEL.unlink, "is missing: run `dvc repro`"),
    "a flipped weight": (lambda: flip(MODEL), "is damaged: its contents do not match its digest"),
}


@pytest.mark.parametrize("name", SPOILED_MODELS)
def test_a_spoiled_model_file_is_refused(trained: bytes, refused: Refused, name: str) -> None:
    spoil, words = SPOILED_MODELS[name]
    spoil()
    assert name == "missing" or MODEL.read_bytes() != trained
    [said] = refused("evaluate")
    assert said.startswith(f"{MODEL}: ")
    assert words in said
    assert not Path("metrics/evaluate.json").exists()


def test_a_model_of_other_data_is_refused(trained: bytes, arrays: Path, refused: Refused) -> None:
    np.savez(arrays, inputs=np.zeros((12, 5, 5), np.uint8), targets=np.arange(12) % 3)
    assert main(["prepare"]) == 0
    assert refused("evaluate") == [
        f"{MODEL}: was trained on image inputs (4, 4, 1) and 2 outputs (0, 1), but data/prepared has image inputs (5, 5, 1) and 3 outputs (0, 1, 2): run `dvc repro`"
    ]


def test_a_missing_dataset_is_refused_at_its_line_and_nothing_is_lost(prepared: Path, parameters: Parameters, refused: Refused) -> None:
    before = Prepared.open(prepared).digest
    line = parameters.put("source.root", "data/raw/nowhere.npz")
    parameters.write()
    for verb in ("check", "prepare"):
        [said] = refused(verb)
        assert said.startswith(
            f"params.yaml:{line}: source.root: data/raw/nowhere.npz does not exist: write the path of the folder or archive"
        )
    assert Prepared.open(prepared).digest == before


def test_validation_that_is_wanted_and_not_there_is_refused_at_its_line(arrays: Path, parameters: Parameters, refused: Refused) -> None:
    parameters.put("source.valid", "0")
    line = parameters.put("train.export_weights", "best")
    parameters.write()
    assert main(["prepare"]) == 0
    assert refused("train") == [
        f"params.yaml:{line}: train.export_weights: best needs a validation split: set source.valid above 0, or write `train.export_weights: last` and `train.patience: null`"
    ]


def test_images_too_small_for_the_model_are_refused_at_its_line(prepared: Path, parameters: Parameters, refused: Refused) -> None:
    parameters.section("model", "name: resnet", "weights: null", "depth: 9", "width: 8")
    parameters.write()
    assert refused("train") == [
        f"params.yaml:{parameters.line('model.name')}: model.name: resnet needs images of at least 8x8, but these are 4x4: write `model.name: convnet`"
    ]


@pytest.mark.parametrize(
    ("number", "words", "code"),
    [
        (errno.ENOSPC, "the disk is full", 69),
        (errno.EDQUOT, "the disk quota is used up", 69),
        (errno.EROFS, "the file system is read-only: run in a writable folder", 2),
        (errno.ENOLCK, "the file system does not support file locks", 2),
    ],
)
def test_a_write_that_fails_names_the_file_and_the_remedy_and_leaves_nothing(
    prepared: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, number: int, words: str, code: int
) -> None:
    def fail(path: Path, text: str, **_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", fail)
    [said] = refused("prepare", code=code)
    assert said.startswith(f"data/prepared/spec.json: {words}")
    assert not (prepared / "spec.json").exists()
    assert not list(prepared.glob(".*"))


def test_inodes_that_ran_out_are_told_from_a_full_disk(arrays: Path, refused: Refused) -> None:
    mounted = Path("data/prepared")
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=4", "tmpfs", mounted], capture_output=True, check=False).returncode:
        pytest.skip("mounting a disk needs root")
    try:
        [said] = refused("prepare", code=69)
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)
    assert said.startswith("data/prepared/")
    assert said.endswith(": the file system has no inodes left: remove files that are not needed, and run the same command again")


def test_an_error_that_nobody_can_mend_keeps_its_traceback(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> io.StringIO:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="the disk is broken"):
        main(["prepare"])
