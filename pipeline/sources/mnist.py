"""MNIST, Fashion-MNIST and Kuzushiji-MNIST: 70,000 grey images of 28x28 pixels, 10 classes."""

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.core import untrusted
from pipeline.core.raw_dataset import TEST, TRAIN, RawDataset, blocks_of
from pipeline.core.refusal import Refusal
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.params import SourceSettings
from pipeline.prepare.reading import archives
from pipeline.tasks.classification.targets import ClassTargets

PREFIXES = {TRAIN: "train", TEST: "t10k"}
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
UINT8 = 8
BLOCK_SAMPLES = 4096
MOST_BYTES = 64 * 2**20
"""Upper bound for a decompressed file; the largest published file has 47 million bytes."""


class Settings(SourceSettings):
    """Reads MNIST, Fashion-MNIST or Kuzushiji-MNIST. `root` is a folder with the four idx files, with or without `.gz`.

    Each file is in `root` itself, in `root/raw/`, or in the folder that torchvision uses, such as `root/MNIST/raw/`. A missing file is
    downloaded into the folder that torchvision uses. Its address and its checksum come from torchvision.
    """

    downloaded: ClassVar[bool] = True
    name: Literal["mnist"]
    variant: Literal["mnist", "fashion", "kmnist"]
    """`mnist`: digits; `fashion`: clothes; `kmnist`: cursive Japanese characters."""

    RECOMMENDED: ClassVar = {"root": "data/raw", "variant": "mnist", "test": 0.0}

    def num_classes(self) -> int:
        return 10

    def open(self, *, workers: int) -> RawDataset:
        dataset = torchvision_class(self.variant)
        paths = find(self.root, dataset)
        inputs = {split: read_idx(paths[f"{prefix}-{IMAGES}"], dimensions=3)[..., None] for split, prefix in PREFIXES.items()}
        targets = {split: read_idx(paths[f"{prefix}-{LABELS}"], dimensions=1).astype(np.int64) for split, prefix in PREFIXES.items()}
        for split, numbers in targets.items():
            if len(inputs[split]) != len(numbers) or len(numbers) == 0:
                raise damaged(self.root, f"{split} has {len(inputs[split])} images and {len(numbers)} labels", f"{PREFIXES[split]}-*")
            if numbers.max() >= (num_classes := len(dataset.classes)):
                problem = f"{split} has the label {numbers.max()}, but the labels are 0 to {num_classes - 1}"
                raise damaged(self.root, problem, f"{PREFIXES[split]}-*")
        if inputs[TRAIN].shape[1:] != inputs[TEST].shape[1:]:
            raise damaged(self.root, "train and test have images of different sizes", "train-* and t10k-*")
        task, statistics = ClassTargets(classes=tuple(dataset.classes)), Statistics(inputs[TRAIN].shape[1:])
        return RawDataset(task, statistics, targets, partial(blocks_of, inputs, BLOCK_SAMPLES))


def damaged(place: Path, problem: str, names: str = "") -> Refusal:
    """Return the refusal of the file `place`, or of the files `names` in this folder."""
    remedy = f"remove the files {names}, and they are downloaded again" if names else "remove it, and it is downloaded again"
    return Refusal(f"source.root: {place}: {problem}: {remedy}")


def torchvision_class(variant: str) -> Any:
    from torchvision import datasets  # late: it imports torch, which no other source needs

    return {"mnist": datasets.MNIST, "fashion": datasets.FashionMNIST, "kmnist": datasets.KMNIST}[variant]


def find(root: Path, dataset: Any) -> dict[str, Path]:
    """Return a dict from the name of each of the four files, without `.gz`, to its path. Download the files that `root` does not have.

    `dataset` is torchvision's class of the dataset, such as `MNIST`: it gives the addresses and checksums. Raises Refusal if a download
    fails.
    """
    home = root / dataset.__name__ / "raw"
    places = [(folder, suffix) for folder in (root, root / "raw", home) for suffix in ("", ".gz")]
    wanted = [f"{prefix}-{part}" for prefix in PREFIXES.values() for part in (IMAGES, LABELS)]
    existing = [(name, path) for name in wanted for folder, suffix in places if (path := folder / f"{name}{suffix}").exists()]
    found = dict(reversed(existing))  # the first place counts
    missing = [f"{name}.gz" for name in wanted if name not in found]
    checksums = dict(dataset.resources)
    for name in missing:
        addresses = [f"{mirror}{name}" for mirror in dataset.mirrors]
        archives.fetch(home / name, addresses, md5=checksums[name], remedy=f"put {', '.join(missing)} into {root}")
        found[name.removesuffix(".gz")] = home / name
    return found


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Return the array in the idx file `path`, as uint8.

    The header of such a file is: two zero bytes, a byte for the type, a byte for the number of dimensions, and the size of each dimension
    (big-endian uint32). The data follow. Raises Refusal if the file cannot be read, has more than MOST_BYTES bytes of data, is not an idx
    file of uint8 with `dimensions` dimensions, or has more or less data than its header says.
    """
    try:
        untrusted.size_bytes(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zeros, kind, depth, *shape = struct.unpack(f">HBB{dimensions}I", file.read(4 + 4 * dimensions))
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise damaged(path, f"cannot be read ({untrusted.reason(error)})") from None
    if len(data) > MOST_BYTES:
        raise damaged(path, f"unpacks to more than {MOST_BYTES} bytes")
    if (zeros, kind, depth) != (0, UINT8, dimensions):
        raise damaged(path, f"is not an idx file of uint8 with {dimensions} dimensions")
    if len(data) != np.prod(shape, dtype=object):
        raise damaged(path, f"has {len(data)} bytes of data, but its header gives the shape {shape}")
    return np.frombuffer(data, np.uint8).reshape(shape)
