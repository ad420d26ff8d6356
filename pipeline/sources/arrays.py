"""NumPy arrays of images and class numbers: an `.npz` file, or a folder of `.npy` files."""

import hashlib
from collections.abc import Generator
from functools import partial
from math import prod
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.core import untrusted
from pipeline.core.raw_dataset import SPLITS, TRAIN, RawDataset, SampleBlock
from pipeline.core.refusal import Refusal
from pipeline.prepare.inputs.image import Statistics
from pipeline.prepare.params import Duplicates, SourceSettings
from pipeline.prepare.reading.arrayfile import ArrayFile, array_files
from pipeline.prepare.reading.class_folders import SPLIT_NAMES
from pipeline.prepare.reading.streams import read_text, text_blocks
from pipeline.tasks.classification.targets import ClassTargets

BLOCK_BYTES = 16 * 2**20
MAX_CHANNELS = 16
LARGEST_SIDE = 65_535
IMAGE_BYTES = 256 * 2**20
NAMES_BYTES = 16 * 2**20
LONGEST_NAME = 255
PARTS = ("inputs", "targets")
PART_NAMES = {**dict.fromkeys(("inputs", "images", "x"), "inputs"), **dict.fromkeys(("targets", "labels", "y"), "targets")}
KNOWN = {*PARTS, *(f"{split}-{part}" for split in SPLITS for part in PARTS), "classes"}


class Settings(SourceSettings):
    """Reads NumPy arrays. `root` is an `.npz` file or a folder of `.npy` files.

    The arrays are `train-inputs` and `train-targets`, and optionally `valid-inputs`, `valid-targets`, `test-inputs` and `test-targets`.
    Alternatively, the arrays are `inputs` and `targets`; all their samples then form the train split. A missing validation or test split is
    split off from train at random. `source.valid` and `source.test` are the shares to split off.

    Inputs are uint8 (samples, height, width) or (samples, height, width, channels). Targets are class numbers from 0, integers (samples,).
    Class names are read from an array `classes` of strings, or from a file `classes.txt` in the folder, with one name per line. Array names
    may contain `_` instead of `-`; `images` or `x` mean inputs, `labels` or `y` targets, before or after the split. Pickle is never used. The inputs are read in blocks, so they may be larger than memory.
    """

    untrusted: ClassVar[bool] = True
    name: Literal["arrays"]
    duplicates: Duplicates

    RECOMMENDED: ClassVar = {"root": "data/raw/arrays", "duplicates": "together"}
    ADDED: ClassVar = {"duplicates": "keep"}

    def open(self, *, workers: int) -> RawDataset:
        arrays = renamed(array_files(self.root), self.root)
        keys = split_keys(arrays, self.root)
        targets = {split: read_targets(arrays[f"{key}targets"]) for split, key in keys.items()}
        inputs = {split: checked_inputs(arrays[f"{key}inputs"], targets[split]) for split, key in keys.items()}
        shapes = {image_shape(array) for array in inputs.values()}
        if len(shapes) > 1:
            raise refusal(self.root, f"the splits have images of different shapes {sorted(shapes)}: save all images with one shape")
        classes = class_names(arrays.get("classes"), self.root, targets)
        together = self.duplicates == "together"
        return RawDataset(
            ClassTargets.named(classes, str(self.root)),
            Statistics(shapes.pop()),
            targets,
            partial(blocks, inputs),
            drawing_keys=partial(contents, inputs[TRAIN]) if together else None,
            together=together,
        )


def refusal(place: Path | ArrayFile, problem: str) -> Refusal:
    """Return the refusal of the root or of an array. `problem` ends with the remedy."""
    return Refusal(f"{place.place}: {problem}" if isinstance(place, ArrayFile) else f"source.root: {place}: {problem}")


def renamed(arrays: dict[str, ArrayFile], root: Path) -> dict[str, ArrayFile]:
    """Return the arrays by the names in KNOWN: `val-images` and `x-test` are `valid-inputs` and `test-inputs`. Any other name is kept.

    Raises Refusal if two arrays have one name.
    """
    found: dict[str, ArrayFile] = {}
    for name, array in arrays.items():
        words = name.lower().split("-")
        splits, parts = ([names[word] for word in words if word in names] for names in (SPLIT_NAMES, PART_NAMES))
        known = "-".join((*splits, *parts)) if len(parts) == 1 and len(splits) == len(words) - 1 <= 1 else name
        if known in found:
            raise refusal(root, f"has two arrays that mean {known} ({found[known].place}, {array.place}): remove one")
        found[known] = array
    return found


def split_keys(arrays: dict[str, ArrayFile], root: Path) -> dict[str, str]:
    """Return a dict from each split in `root` to the prefix of its array names, such as `train-`. The prefix is "" if the names have none.

    `arrays` maps array names to arrays. Raises Refusal if an array is unknown or missing, or if some names contain a split and others do
    not.
    """
    listed = ", ".join(sorted(arrays)) or "none"
    unknown = sorted(set(arrays) - KNOWN)
    if unknown:
        raise refusal(root, f"has an unknown array {unknown[0]}: remove it, or rename it to one of {', '.join(sorted(KNOWN))}")
    keys = {split: f"{split}-" for split in SPLITS if any(f"{split}-{part}" in arrays for part in PARTS)}
    if any(part in arrays for part in PARTS):
        if keys:
            both = "has inputs or targets both with and without a split in their names"
            raise refusal(root, f"{both} ({listed}): rename or remove some")
        keys = {TRAIN: ""}
    missing = [f"{key}{part}" for key in {TRAIN: "train-", **keys}.values() for part in PARTS if f"{key}{part}" not in arrays]
    if missing:
        raise refusal(root, f"has no array {missing[0]} (found: {listed}): add it")
    return keys


def read_targets(array: ArrayFile) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu" or array.shape not in ((array.shape[:1]), (*array.shape[:1], 1)):
        remedy = "save class numbers with shape (samples,) and an integer dtype, such as int64; numbers to predict are read from a table of images"
        raise refusal(array, f"has shape {array.shape} and dtype {array.dtype}: {remedy}")
    if array.shape[0] == 0:
        raise refusal(array, "has no samples: add some, or remove the arrays of this split")
    targets = next(array.blocks(array.shape[0])).reshape(-1)
    if targets.min() < 0 or targets.max() > np.iinfo(np.int32).max:
        problem = f"has negative or too large class numbers ({targets.min()} to {targets.max()})"
        raise refusal(array, f"{problem}: number the classes from 0 without gaps")
    return targets.astype(np.int64)


def checked_inputs(array: ArrayFile, targets: NDArray[np.int64]) -> ArrayFile:
    has, sizes = f"has shape {array.shape}", array.shape[1:]
    if array.dtype != np.uint8:
        remedy = "save uint8 values from 0 to 255, such as `(255 * x).round().astype(np.uint8)` for x from 0 to 1"
        raise refusal(array, f"has dtype {array.dtype}: {remedy}")
    if len(array.shape) not in (3, 4) or 0 in sizes:
        raise refusal(array, f"{has}: save (samples, height, width) or (samples, height, width, channels)")
    if image_shape(array)[2] > MAX_CHANNELS:
        remedy = "if the channels are the second axis, save `x.transpose(0, 2, 3, 1)`"
        raise refusal(array, f"{has}: the last axis must be the channels, at most {MAX_CHANNELS}: {remedy}")
    if prod(sizes) > IMAGE_BYTES or max(sizes) > LARGEST_SIDE:
        raise refusal(array, f"{has}: shrink the images to at most {LARGEST_SIDE} pixels per side and {IMAGE_BYTES} bytes")
    if array.shape[0] != len(targets):
        raise refusal(array, f"has {array.shape[0]} samples, but there are {len(targets)} targets: save one target per sample")
    return array


def image_shape(array: ArrayFile) -> tuple[int, int, int]:
    height, width, channels = (*array.shape[1:], 1)[:3]
    return height, width, channels


def class_names(array: ArrayFile | None, root: Path, targets: dict[str, NDArray[np.int64]]) -> tuple[str, ...]:
    """Return the class names of the dataset, or the class numbers as text if the dataset has no names.

    `array` is the array `classes`. If it is None, the names are read from `classes.txt` in `root`, if that file exists. `targets` maps each
    split to its class numbers. Raises Refusal if the names cannot be read, if a class number has no name, or if a name is empty, repeated,
    too long or not printable. For a dataset without names, raises Refusal if the highest class number is not below the number of train
    samples, because some class then has no train sample.
    """
    highest = max(int(numbers.max()) for numbers in targets.values())
    names = given_names(array, root)
    if names is None:
        if highest >= (num_samples := len(targets[TRAIN])):  # else one stray number could create a billion classes
            problem = f"has the class number {highest}, but train has only {num_samples} samples"
            raise refusal(root, f"{problem}: number the classes from 0 without gaps")
        return tuple(map(str, range(highest + 1)))
    if highest >= len(names):
        raise refusal(root, f"has the class number {highest}, but `classes` has only {len(names)} names: add the missing names")
    if len(set(names)) < len(names) or not all(names):
        raise refusal(root, "`classes` has an empty or repeated name: give each class its own name")
    if unfit := [name for name in names if not name.isprintable() or len(name) > LONGEST_NAME]:
        problem = f"`classes` has the name {untrusted.shown(unfit[0])}"
        raise refusal(root, f"{problem}: use at most {LONGEST_NAME} characters, all of them printable")
    return names


def given_names(array: ArrayFile | None, root: Path) -> tuple[str, ...] | None:
    if array is not None:
        if array.dtype.kind != "U" or len(array.shape) != 1:
            remedy = "save the class names as a one-dimensional array of text: `np.array([...], dtype=str)`"
            raise refusal(array, f"has shape {array.shape} and dtype {array.dtype}: {remedy}")
        if prod(array.shape) * array.dtype.itemsize > NAMES_BYTES:
            raise refusal(array, f"needs more than {NAMES_BYTES} bytes: shorten the longest names")
        return tuple(str(name) for name in next(array.blocks(max(1, array.shape[0])), ()))
    path = root / "classes.txt"
    if not path.is_file():
        return None
    text = read_text(text_blocks(path), f"source.root: {untrusted.shown(path)}", NAMES_BYTES, "shorten the names")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def blocks(inputs: dict[str, ArrayFile]) -> Generator[SampleBlock]:
    for split, array in inputs.items():
        shape = image_shape(array)
        start = 0
        for rows in array.blocks(max(1, BLOCK_BYTES // int(np.prod(shape)))):
            yield SampleBlock(split, np.arange(start, start + len(rows)), rows.reshape(-1, *shape))
            start += len(rows)


def contents(array: ArrayFile) -> list[bytes]:
    """Return the SHA-256 of each image."""
    return [hashlib.sha256(image).digest() for block in blocks({TRAIN: array}) for image in np.ascontiguousarray(block.inputs)]
