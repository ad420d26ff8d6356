"""`check` downloads what the stages need, so that no stage fails after DVC has deleted its last outputs."""

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torchvision import models

from pipeline.__main__ import main
from pipeline.prepare.reading import download
from pipeline.sources import cifar
from pipeline.tools.check import command as check
from tests import project
from tests.sources.pictures import write_tar
from tests.sources.served import served
from tests.sources.test_cifar import cifar10

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

    monkeypatch.setattr(download, "receive", receive)
    assert main(["check"]) == 128 + signal.SIGTERM
    assert not list(Path("raw").iterdir())
