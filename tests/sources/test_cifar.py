"""CIFAR-10 and CIFAR-100 from the published binary layout: as archive, as folder, or from the network."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.raw_dataset import TEST, TRAIN
from pipeline.core.refusal import Refusal
from pipeline.sources import cifar

from .pictures import gathered, write_folder, write_tar
from .served import served

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 20, 32, 32, 3), dtype=np.uint8)


def records(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels, images.transpose(0, 3, 1, 2).reshape(len(images), -1)], axis=1).astype(np.uint8).tobytes()


def cifar10() -> dict[str, bytes]:
    labels = (np.arange(20) % 10)[:, None]
    files = {f"data_batch_{number}.bin": records(PIXELS[number - 1], labels) for number in range(1, 6)}
    files |= {"test_batch.bin": records(PIXELS[5], labels), "batches.meta.txt": "\n".join([*TEN, "", ""]).encode(), "readme.html": b"x"}
    return {f"cifar-10-batches-bin/{name}": data for name, data in files.items()}


def cifar100() -> dict[str, bytes]:
    labels = np.stack([np.arange(20), np.arange(20) + 80], axis=1)
    names = "\n".join(f"fine{number}" for number in range(100)).encode()
    files = {"train.bin": records(PIXELS[0], labels), "test.bin": records(PIXELS[1], labels), "fine_label_names.txt": names}
    return {f"cifar-100-binary/{name}": data for name, data in files.items()}


def settings(root: Path, variant: str = "cifar10") -> cifar.Settings:
    return cifar.Settings(name="cifar", root=root, variant=variant, valid=0.1, test=0.0, seed=1, folds=None, fold=0)  # type: ignore[arg-type]


def refusal(root: Path) -> str:
    with pytest.raises(Refusal) as caught:
        settings(root).open(workers=1)
    return str(caught.value)


def stored(tmp_path: Path, form: str) -> Path:
    if form == "folder in root":
        return write_folder(tmp_path, cifar10())
    if form == "folder as root":
        return write_folder(tmp_path, cifar10()) / "cifar-10-batches-bin"
    archive = write_tar(tmp_path / "cifar-10-binary.tar.gz", cifar10(), "w:gz")
    return archive if form == "archive as root" else tmp_path


@pytest.mark.parametrize("form", ["archive in root", "archive as root", "folder in root", "folder as root"])
def test_cifar10_is_read_where_it_lies(tmp_path, monkeypatch, form):
    monkeypatch.setattr(cifar, "ADDRESS", "http://127.0.0.1:9/")
    monkeypatch.setattr(cifar, "BLOCK_SAMPLES", 7)
    raw_dataset = settings(stored(tmp_path, form)).open(workers=1)
    assert raw_dataset.task.classes == tuple(TEN)
    assert settings(tmp_path).num_classes() == 10
    assert raw_dataset.targets[TRAIN].tolist() == [*range(10)] * 10
    found = gathered(raw_dataset)
    assert np.array_equal(found[TRAIN], PIXELS[:5].reshape(-1, 32, 32, 3))
    assert np.array_equal(found[TEST], PIXELS[5])


def test_cifar100_has_its_fine_labels(tmp_path):
    write_tar(tmp_path / "cifar-100-binary.tar.gz", cifar100(), "w:gz")
    raw_dataset = settings(tmp_path, "cifar100").open(workers=1)
    assert len(raw_dataset.task.classes) == settings(tmp_path, "cifar100").num_classes() == 100
    assert raw_dataset.targets[TRAIN].tolist() == [*range(80, 100)]
    assert np.array_equal(gathered(raw_dataset)[TEST], PIXELS[1])


def test_the_archive_is_downloaded_once_and_checked(tmp_path, monkeypatch):
    (tmp_path / "shop").mkdir()
    archive = write_tar(tmp_path / "shop/cifar-10-binary.tar.gz", cifar10(), "w:gz")
    root = tmp_path / "root"
    with served(archive.parent) as (address, asked):
        monkeypatch.setattr(cifar, "ADDRESS", address)
        message = refusal(root)
        assert ", not the published c32a1d4ab5d03f1284b67883e8d87530" in message
        assert f"put cifar-10-binary.tar.gz or the folder cifar-10-batches-bin into {root}" in message
        assert not list(root.iterdir())
        object.__setattr__(cifar.VARIANTS["cifar10"], "md5", hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest())
        for _ in range(2):
            assert len(gathered(settings(root).open(workers=1))[TRAIN]) == 100
        assert len(asked) == 2
    assert [path.name for path in root.iterdir()] == ["cifar-10-binary.tar.gz"]


@pytest.fixture(autouse=True)
def published_checksum(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    before = cifar.VARIANTS["cifar10"].md5
    yield
    object.__setattr__(cifar.VARIANTS["cifar10"], "md5", before)


def test_missing_and_unreadable_files_are_named(tmp_path):
    folder = write_folder(tmp_path, cifar10()) / "cifar-10-batches-bin"
    (folder / "data_batch_3.bin").unlink()
    assert "has no data_batch_3.bin" in refusal(tmp_path)
    (folder / "data_batch_3.bin").symlink_to("nowhere")
    assert "cannot be read" in refusal(tmp_path)
