"""MNIST and its kin: from idx files that are there, or from the network with their checksums."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.raw_dataset import TEST, TRAIN
from pipeline.core.refusal import Refusal
from pipeline.sources import mnist

from .pictures import gathered
from .served import served

RNG = np.random.default_rng(0)
IMAGES = {"train": RNG.integers(0, 256, (30, 6, 5), dtype=np.uint8), "t10k": RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8)}
CLOSED = "http://127.0.0.1:9/"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def contents() -> dict[str, bytes]:
    files = {f"{prefix}-images-idx3-ubyte": idx(images) for prefix, images in IMAGES.items()}
    return files | {f"{prefix}-labels-idx1-ubyte": idx((np.arange(len(images)) % 10).astype(np.uint8)) for prefix, images in IMAGES.items()}


def write(folder: Path, *, packed: bool, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def settings(root: Path, variant: str = "mnist") -> mnist.Settings:
    return mnist.Settings(name="mnist", root=root, variant=variant, valid=0.1, test=0.0, seed=1, folds=None, fold=0)  # type: ignore[arg-type]


def refusal(root: Path) -> str:
    with pytest.raises(Refusal) as caught:
        settings(root).open(workers=1)
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    for variant in ("mnist", "fashion", "kmnist"):
        monkeypatch.setattr(mnist.torchvision_class(variant), "mirrors", [CLOSED])


@pytest.mark.parametrize(("packed", "place"), [(False, ""), (True, "raw"), (True, "KMNIST/raw")])
def test_files_that_are_there_are_read_without_a_network(tmp_path, packed, place):
    write(tmp_path / place, packed=packed, files=contents())
    raw_dataset = settings(tmp_path, "kmnist").open(workers=1)
    assert raw_dataset.task.classes == ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
    assert len(raw_dataset.task.classes) == settings(tmp_path, "kmnist").num_classes()
    assert raw_dataset.statistics.row_shape == (6, 5, 1)
    found = gathered(raw_dataset)
    assert np.array_equal(found[TRAIN][..., 0], IMAGES["train"])
    assert np.array_equal(found[TEST][..., 0], IMAGES["t10k"])
    assert raw_dataset.targets[TEST].tolist() == [*range(10), *range(10)]


def test_what_is_missing_is_downloaded_and_checked(tmp_path, monkeypatch, capsys):
    shop = write(tmp_path / "shop", packed=True, files=contents())
    resources = [(path.name, hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()) for path in shop.iterdir()]
    dataset = mnist.torchvision_class("fashion")
    root = tmp_path / "root"
    root.mkdir()
    with served(shop) as (address, asked):
        monkeypatch.setattr(dataset, "mirrors", [CLOSED, address])
        monkeypatch.setattr(dataset, "resources", resources)
        first = gathered(settings(root, "fashion").open(workers=1))
        assert len(asked) == 4
        again = gathered(settings(root, "fashion").open(workers=1))
        assert len(asked) == 4
    assert np.array_equal(first[TRAIN], again[TRAIN])
    assert sorted(path.name for path in (root / "FashionMNIST/raw").iterdir()) == sorted(name for name, _ in resources)
    assert f"downloading {address}train-images-idx3-ubyte.gz" in capsys.readouterr().out


def test_a_download_that_fails_leaves_nothing_and_says_which_files_to_put_where(tmp_path, monkeypatch):
    message = refusal(tmp_path)
    assert f"train-images-idx3-ubyte.gz could not be downloaded ({CLOSED}train-images-idx3-ubyte.gz: " in message
    assert (
        "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz into " in message
    )
    with served(write(tmp_path / "shop", packed=True, files=contents())) as (address, _):
        monkeypatch.setattr(mnist.torchvision_class("mnist"), "mirrors", [address, "ftp://127.0.0.1/", address + "nowhere/"])
        message = refusal(tmp_path)
    assert ", not the published " in message
    assert "is not an http or https URL" in message
    assert "404" in message
    assert not list((tmp_path / "MNIST/raw").iterdir())


DAMAGE = {
    "cannot be read": b"\0\0",
    "train has 7 images and 30 labels": idx(np.zeros((7, 6, 5), np.uint8)),
    "images of different sizes": idx(np.zeros((30, 5, 5), np.uint8)),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_files_are_refused(tmp_path, message):
    assert message in refusal(write(tmp_path, packed=False, files=contents() | {"train-images-idx3-ubyte": DAMAGE[message]}))
