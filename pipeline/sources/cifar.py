"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 60,000 colour images of 32x32 pixels, from the `-binary` archives, which need no pickle."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.core.raw_dataset import TEST, TRAIN, RawDataset, blocks_of
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import reason
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.params import SourceSettings
from pipeline.prepare.reading import archives
from pipeline.prepare.reading.file_tree import READ_ERRORS
from pipeline.tasks.classification.targets import ClassTargets

ADDRESS = "https://www.cs.toronto.edu/~kriz/"
CHANNELS, SIDE = 3, 32
PIXELS = CHANNELS * SIDE * SIDE
BLOCK_SAMPLES = 4096
MOST_BYTES = 200 * 2**20
"""Upper bound for the total size of the files that are read; the published files have 185 million bytes in total."""


@dataclass(frozen=True)
class Variant:
    """One of the two published datasets, CIFAR-10 or CIFAR-100.

    `archive` is the name of the archive, `md5` its checksum, and `folder` the folder in it. `files` maps each split to the names of its
    files, and `names` is the file with the class names. In the files of the splits, each image comes after its labels. A label is one byte,
    and `labels` is the number of labels per image. Only the last label is used: CIFAR-100 has a coarse label and then a fine label.
    """

    archive: str
    md5: str
    folder: str
    files: dict[str, tuple[str, ...]]
    names: str
    num_classes: int
    labels: int


VARIANTS = {
    "cifar10": Variant(
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        files={TRAIN: tuple(f"data_batch_{number}.bin" for number in range(1, 6)), TEST: ("test_batch.bin",)},
        names="batches.meta.txt",
        num_classes=10,
        labels=1,
    ),
    "cifar100": Variant(
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        files={TRAIN: ("train.bin",), TEST: ("test.bin",)},
        names="fine_label_names.txt",
        num_classes=100,
        labels=2,
    ),
}


class Settings(SourceSettings):
    """Reads CIFAR-10 or CIFAR-100. `root` is a folder with the published archive (`cifar-10-binary.tar.gz`, `cifar-100-binary.tar.gz`) or
    with its unpacked files. If neither exists, the archive is downloaded and checked against the published MD5. The archive is not
    unpacked to the disk.
    """

    downloaded: ClassVar[bool] = True
    name: Literal["cifar"]
    variant: Literal["cifar10", "cifar100"]
    """`cifar10`: 10 classes; `cifar100`: 100 classes, its fine labels."""

    RECOMMENDED: ClassVar = {"root": "data/raw", "variant": "cifar10", "valid": 0.04, "test": 0.0}

    def num_classes(self) -> int:
        return VARIANTS[self.variant].num_classes

    def open(self, *, workers: int) -> RawDataset:
        variant = VARIANTS[self.variant]
        place = find(self.root, variant)
        contents = read(place, variant)
        classes = tuple(contents[variant.names].decode("ascii", "replace").split())
        if len(set(classes)) != variant.num_classes:
            raise damaged(f"{place}: {variant.names} lists {len(set(classes))} classes, not {variant.num_classes}")
        records = {split: [parse(contents[name], place / name, variant) for name in names] for split, names in variant.files.items()}
        targets = {split: np.concatenate([labels for labels, _ in parts]) for split, parts in records.items()}
        images = {split: np.concatenate([pixels for _, pixels in parts]) for split, parts in records.items()}
        task, statistics = ClassTargets(classes=classes), Statistics((SIDE, SIDE, CHANNELS))
        return RawDataset(task, statistics, targets, partial(blocks_of, images, BLOCK_SAMPLES))


def damaged(problem: str) -> Refusal:
    return Refusal(f"source.root: {problem}: download it again")


def find(root: Path, variant: Variant) -> Path:
    """Return the path from which to read the dataset: the archive, or a folder with its unpacked files.

    `root` is returned if it is itself the archive or such a folder. Otherwise, both are looked for in `root`, and the archive is preferred.
    If both are missing, the archive is downloaded into `root`.
    """
    if root.is_file() or (root / variant.names).exists():
        return root
    archive, folder = root / variant.archive, root / variant.folder
    if folder.is_dir() and not archive.exists():
        return folder
    if not archive.exists():
        remedy = f"put {variant.archive} or the folder {variant.folder} into {root}"
        archives.fetch(archive, [ADDRESS + variant.archive], md5=variant.md5, remedy=remedy)
    return archive


def read(place: Path, variant: Variant) -> dict[str, bytes]:
    """Return the contents of the dataset's files by file name. `place` is the archive or a folder, and the files may be in any subfolder.

    Raises Refusal if a file is missing, occurs twice or cannot be read, or if the files have more than MOST_BYTES in total.
    """
    tree = archives.open_tree(place)
    wanted = {variant.names, *(name for names in variant.files.values() for name in names)}
    chosen = [name for name in tree.listing().files if Path(name).name in wanted]
    if len(chosen) > len(wanted):
        problem = f"has {len(chosen)} files with names of this dataset, which has only {len(wanted)} files"
        raise Refusal(f"source.root: {place}: {problem}: set source.root to a folder with one copy of the dataset")
    contents: dict[str, bytes] = {}
    try:
        with tree.contents(chosen) as members:
            for member in members:
                contents[Path(member.name).name] = member.read()
                if sum(map(len, contents.values())) > MOST_BYTES:
                    raise damaged(f"{place}: has files of more than {MOST_BYTES} bytes in total, which is more than CIFAR has")
    except Refusal:
        raise
    except READ_ERRORS as error:
        raise damaged(f"{place}: cannot be read ({reason(error)})") from None
    if missing := sorted(wanted - set(contents)):
        remedy = f"set source.root to a folder that contains the complete {variant.archive} or {variant.folder}"
        raise Refusal(f"source.root: {place}: has no {missing[0]}: {remedy}")
    return contents


def parse(data: bytes, place: Path, variant: Variant) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return int64 labels (n,) and uint8 images (n, height, width, channels) from the contents `data` of a file.

    Each record has the labels of one image, then its red, green and blue planes, each stored row by row. Raises Refusal if `data` is empty
    or does not consist of whole records, or if a label is too high. In the message, `place` names the file.
    """
    length = variant.labels + PIXELS
    if len(data) == 0 or len(data) % length:
        raise damaged(f"{place}: has {len(data)} bytes, which is not a positive multiple of {length} (an image and its labels)")
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    labels = records[:, variant.labels - 1].astype(np.int64)
    if labels.max() >= variant.num_classes:
        raise damaged(f"{place}: has the label {labels.max()}, but the labels are 0 to {variant.num_classes - 1}")
    return labels, records[:, variant.labels :].reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
