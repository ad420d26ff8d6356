"""`check` examines the user's own images, and downloads what the stages need, before anything runs."""

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import pytest
import torch
from PIL import Image
from torchvision import models

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.prepare.reading import archives
from pipeline.sources import cifar
from pipeline.tools.check import command as check
from tests import project
from tests.imports import TOP
from tests.sources.pictures import write_tar
from tests.sources.served import served
from tests.sources.test_cifar import cifar10


@pytest.fixture(autouse=True)
def without_dvc(monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC would be asked what it would run, which takes a second."""
    monkeypatch.setattr(check, "would_run", lambda _: True)


DIGITS = {"name": "digits", "root": "data/README.md", "valid": 0.2, "test": 0.2, "seed": 1, "folds": None, "fold": 0}


def images(folder: Path, classes: dict[str, int]) -> None:
    for name, count in classes.items():
        (folder / "images" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / "images" / name / f"{number}.png")


@pytest.mark.parametrize(
    ("classes", "changes", "message"),
    [
        ({"cat": 9}, {}, "has only one class (cat): add samples of a second class"),
        (
            {"cat": 9, "dog": 9},
            {"source": {**project.IMAGE_FOLDER, "valid": 0.0}, "train.export_weights": "best"},
            "train.export_weights: best needs a validation split: set source.valid above 0",
        ),
        ({"cat": 9, "dog": 9}, {"evaluate.top_k": 3}, "evaluate.top_k: 3 is more than the 2 classes of this dataset: write at most 2"),
        ({}, {"source": DIGITS, "evaluate.top_k": 11}, "evaluate.top_k: 11 is more than the 10 classes of this dataset: write at most 10"),
    ],
    ids=["one class", "no validation split", "more ranks than classes", "more ranks than digits"],
)
def test_a_dataset_that_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], classes: dict, changes: dict, message: str
) -> None:
    monkeypatch.chdir(project.make(tmp_path, {"source": project.IMAGE_FOLDER, **changes}))
    images(tmp_path, classes)
    assert main(["check"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: params.yaml:")
    assert not (tmp_path / "data/prepared").exists()


def test_check_and_prepare_count_corrupt_images_and_name_the_first_ten(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(project.make(tmp_path, {"source": project.IMAGE_FOLDER, "evaluate.top_k": 2}))
    images(tmp_path, {"cat": 15, "dog": 15})
    for number in range(12):
        (tmp_path / f"images/cat/{number}.png").write_bytes(b"<html>")
    for verb in ("check", "prepare"):
        assert main([verb]) == 2
        error = capsys.readouterr().err
        assert "source.root: images: 12 of 30 images cannot be used: cat/0.png: cannot be decoded (is not an image" in error
        assert "cat/7.png: cannot be decoded (is not an image that Pillow can read); and 2 more: repair or remove them" in error
    monkeypatch.setattr(check, "would_run", lambda _: False)
    assert main(["check"]) == 0


def test_the_preset_of_image_folders_takes_two_splits_and_two_classes(tmp_path, monkeypatch, capsys) -> None:
    preset = Document.read(TOP / "presets/image-folder.yaml").data
    monkeypatch.chdir(project.make(tmp_path, {name: preset[name] for name in ("source", "train", "evaluate")}))
    monkeypatch.setenv("PIPELINE_WORKERS", "1")
    Path("data/raw/images").mkdir(parents=True)
    Path("images").symlink_to("data/raw/images")
    images(tmp_path, {f"{split}{name}": 20 for split in ("train/", "val/") for name in ("cat", "dog")})
    assert main(["check"]) == 0
    assert "mlp on images, training on cpu" in capsys.readouterr().out
    assert main(["prepare"]) == 0
    found = {path.name.partition("-")[0] for path in Path("data/prepared").glob("*-inputs.npy")}
    assert found == {"train", "valid", "test"}


def test_a_source_of_an_unknown_task_is_refused() -> None:
    source = SimpleNamespace(name="plane", targets_kind="regresion")
    with pytest.raises(Refusal, match=r"source\.name: .*plane.*regresion.*classification"):
        check.targets_of(source)


Refused = Callable[..., list[str]]
WEIGHTS = {"name": "torchvision", "weights": None, "architecture": "mobilenet_v3_small", "stem": "small", "pretrained": "IMAGENET1K_V1"}
FILE = "mobilenet_v3_small-047dcff4.pth"
CIFAR = {"name": "cifar", "root": "raw", "variant": "cifar10", "valid": 0.1, "test": 0.0, "seed": 1, "folds": None, "fold": 0}


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]) -> None:
    monkeypatch.chdir(project.make(folder, changes))
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(check, "would_run", lambda _: True)  # tests/laws/test_repro.py asks DVC, which takes a second


def unreachable(*_: object, **__: object) -> None:
    raise URLError("Name or service not known")


def test_weights_that_cannot_be_downloaded_are_refused_with_the_line_and_the_place(refused: Refused, tmp_path: Path, monkeypatch) -> None:
    enter(tmp_path, monkeypatch, {"model": WEIGHTS})
    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    [message] = refused("check", code=69)
    assert message.startswith("params.yaml:")
    assert "model.pretrained: IMAGENET1K_V1 cannot be downloaded (<urlopen error Name or service not known>)" in message
    assert f"put {FILE} into {tmp_path}/torch/hub/checkpoints" in message


def test_weights_are_downloaded_once_and_damaged_ones_are_refused(refused: Refused, tmp_path: Path, monkeypatch) -> None:
    enter(tmp_path, monkeypatch, {"model": WEIGHTS})
    downloads = []

    def receive(_url: str, path: str, *_: object, **__: object) -> None:
        downloads.append(path)
        torch.save(models.mobilenet_v3_small().state_dict(), path)

    monkeypatch.setattr("torch.hub.download_url_to_file", receive)
    assert main(["check"]) == main(["check"]) == 0
    assert downloads == [str(tmp_path / "torch/hub/checkpoints" / FILE)]
    Path(downloads[0]).write_bytes(b"not weights")
    [message] = refused("check")
    assert f"model.pretrained: {downloads[0]}: is not a complete weights file: remove this file" in message


def test_nothing_is_downloaded_or_read_for_a_training_that_dvc_would_not_run(tmp_path: Path, monkeypatch, capsys) -> None:
    enter(tmp_path, monkeypatch, {"model": WEIGHTS})
    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    monkeypatch.setattr(check, "would_run", lambda stage: stage != "train")
    path = tmp_path / "torch/hub/checkpoints" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not weights")
    assert main(["check"]) == 0
    assert "mobilenet_v3_small on digits" in capsys.readouterr().out, "the architecture is named, not `torchvision`"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small CIFAR-10 archive and publish its checksum."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "raw").mkdir()
    enter(tmp_path, monkeypatch, {"source": CIFAR})
    path = write_tar(tmp_path / "shop/cifar-10-binary.tar.gz", cifar10(), "w:gz")
    variant = cifar.VARIANTS["cifar10"]
    checksum = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(cifar.VARIANTS, "cifar10", cifar.Variant(**{**vars(variant), "md5": checksum}))
    return path


def test_a_dataset_is_downloaded_once_and_a_damaged_one_is_refused(archive: Path, refused: Refused, monkeypatch) -> None:
    with served(archive.parent) as (address, asked):
        monkeypatch.setattr(cifar, "ADDRESS", address)
        assert main(["check"]) == main(["prepare"]) == 0
        assert len(asked) == 1
    Path("raw", archive.name).write_bytes(archive.read_bytes()[:-30])
    [message] = refused("check")
    assert "cannot be read as a complete" in message


@pytest.mark.usefixtures("archive")
def test_no_dataset_is_downloaded_or_read_where_dvc_would_not_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "ADDRESS", "http://127.0.0.1:9/")
    monkeypatch.setattr(check, "would_run", lambda stage: stage != "prepare")
    Path("raw/cifar-10-binary.tar.gz").write_bytes(b"not an archive")
    assert main(["check"]) == 0


def test_a_signal_in_a_download_leaves_nothing_half(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(_address: str, draft: Path, **_: str) -> None:
        draft.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(archives, "receive", receive)
    assert main(["check"]) == 128 + signal.SIGTERM
    assert not list(Path("raw").iterdir())
