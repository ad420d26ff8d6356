"""Datasets of small pictures, written in every form that the sources read."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.core.raw_dataset import RawDataset

FILES = {
    "train/cat/a.png": 10,
    "train/cat/b.jpg": 20,
    "train/dog/c.png": 200,
    "train/dog/d.bmp": 210,
    "train/dog/e.webp": 220,
    "test/dog/f.png": 230,
    "test/cat/g.gif": 30,
}


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(value: int, kind: str = "PNG", side: int = 12) -> bytes:
    return encoded(Image.new("RGB", (side, side), (value, value, value)), kind)


def dataset(names: dict[str, int] = FILES) -> dict[str, bytes]:
    kinds = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "webp": "WEBP", "gif": "GIF"}
    return {name: picture(value, kinds[name.rpartition(".")[2]]) for name, value in names.items()}


def write_folder(root: Path, contents: dict[str, bytes]) -> Path:
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_tar(path: Path, contents: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(path: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return path


def gathered(raw_dataset: RawDataset) -> dict[str, np.ndarray]:
    """Each split's inputs, after a check that positions ascend and shapes are as promised."""
    found: dict[str, list[np.ndarray]] = {split: [] for split in raw_dataset.targets}
    places: dict[str, list[int]] = {split: [] for split in raw_dataset.targets}
    for block in raw_dataset.blocks():
        assert block.inputs.dtype == np.uint8
        assert block.inputs.shape == (len(block.positions), *raw_dataset.statistics.row_shape)
        found[block.split].append(block.inputs)
        places[block.split].extend(block.positions.tolist())
    for split, positions in places.items():
        assert positions == sorted(set(positions))
        assert set(positions) <= set(range(len(raw_dataset.targets[split])))
    return {split: np.concatenate(parts) for split, parts in found.items() if parts}
