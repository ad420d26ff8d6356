"""Derives splits, classes and samples from file names: `SPLIT/CLASS/image` or `CLASS/image`, optionally inside one enclosing folder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.io.reading.tree import Listing, name_bytes
from pipeline.io.untrusted import shown
from pipeline.raw_dataset import TEST, TRAIN, VALID
from pipeline.refusal import Refusal

SPLIT_NAMES = {"train": TRAIN, "valid": VALID, "val": VALID, "validation": VALID, "test": TEST}
LONGEST_NAME = 255
CLUTTER = {"thumbs.db", "desktop.ini", "__macosx"}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2")
WANTED = "SPLIT/CLASS/image (SPLIT one of train, valid, test) or CLASS/image"

Parts = tuple[str, ...]


class Sample(NamedTuple):
    """A file name, and the position of its target in `Layout.targets[split]`."""

    name: str
    split: str
    position: int


@dataclass(frozen=True)
class Layout:
    """The classes in byte order of their names, the samples in the order of the listing, and the targets of each split."""

    classes: tuple[str, ...]
    samples: list[Sample]
    targets: Mapping[str, NDArray[np.int64]]


def arrange(listing: Listing, place: str) -> Layout:
    """Return the layout of a listing. Raises Refusal where the split or class of a file is ambiguous."""
    files = [(name, parts) for name in listing.files if (parts := relevant(name))]
    folders = {parts for name in listing.folders if (parts := relevant(name))}
    folders |= {parts[:-1] for _, parts in files}
    depth = max((len(parts) for _, parts in files), default=0)
    outer = int(enclosed(folders, depth))
    inner = depth - outer
    if inner not in (2, 3):
        deepest = next((f"{shown(name)}: " for name, parts in files if len(parts) == depth), "")
        raise Refusal(f"source.root: {place}: {deepest}holds no images as {WANTED}")
    splits = split_names({parts[outer] for _, parts in files if len(parts) == depth}, place) if inner == 3 else {}
    refuse_stray((name for name, parts in files if len(parts) < depth), place)
    classes = class_names({parts[outer:] for parts in folders}, splits, place)
    return number([(name, parts[outer:]) for name, parts in files if len(parts) == depth], splits, classes)


def relevant(name: str) -> Parts:
    """Return the parts of a path, or none for hidden files and for files that desktops create (`CLUTTER`)."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return () if any(part.startswith(".") or part.lower() in CLUTTER for part in parts) else parts


def enclosed(folders: set[Parts], depth: int) -> bool:
    """Return True where one folder encloses the whole layout and is not itself a split."""
    tops = {parts[0] for parts in folders if parts}
    return len(tops) == 1 and (depth == 4 or (depth == 3 and not is_split(*tops)))


def is_split(name: str) -> bool:
    return name.lower() in SPLIT_NAMES


def split_names(tops: set[str], place: str) -> dict[str, str]:
    """Return the split of each top folder. Raises Refusal for an unknown or duplicate split, and where train is missing."""
    foreign = sorted(top for top in tops if not is_split(top))
    if foreign:
        raise Refusal(f"source.root: {place}: {shown(foreign[0])}/ holds folders but is no split: arrange the files as {WANTED}")
    splits = {top: SPLIT_NAMES[top.lower()] for top in sorted(tops)}
    if len(set(splits.values())) < len(splits):
        twice = [top for top, split in splits.items() if list(splits.values()).count(split) > 1]
        raise Refusal(f"source.root: {place}: has one split under two names ({', '.join(twice)}): keep one folder")
    if TRAIN not in splits.values():
        raise Refusal(f"source.root: {place}: has no train folder with images beside {', '.join(splits)}")
    return splits


def refuse_stray(names: Iterable[str], place: str) -> None:
    for name in names:
        if name.lower().endswith(IMAGE_SUFFIXES):
            raise Refusal(f"source.root: {place}: {shown(name)}: lies in no class folder: arrange the files as {WANTED}, or remove it")


def class_names(folders: set[Parts], splits: Mapping[str, str], place: str) -> tuple[str, ...]:
    """Return the classes of all splits. An empty folder counts as a class, so that it is refused later instead of ignored."""
    if splits:
        empty = sorted({parts[0] for parts in folders if parts and is_split(parts[0])} - set(splits))
        if empty:
            raise Refusal(f"source.root: {place}: {shown(empty[0])}/ holds no class folder with images: fill or remove it")
        names = {parts[1] for parts in folders if len(parts) == 2 and parts[0] in splits}
    else:
        names = {parts[0] for parts in folders if len(parts) == 1}
        if all(is_split(name) for name in names):
            raise Refusal(
                f"source.root: {place}: has splits ({', '.join(sorted(names))}) without class folders: arrange the files as {WANTED}"
            )
    for name in names:
        if not name.isprintable():
            raise Refusal(f"source.root: {place}: the folder {shown(name)} is named by bytes that cannot be printed: rename it")
        if len(name) > LONGEST_NAME:
            raise Refusal(f"source.root: {place}: the folder {shown(name)} has a name of {len(name)} characters: rename it")
    return tuple(sorted(names, key=name_bytes))


def number(files: list[tuple[str, Parts]], splits: Mapping[str, str], classes: tuple[str, ...]) -> Layout:
    numbers = {name: index for index, name in enumerate(classes)}
    targets: dict[str, list[int]] = {split: [] for split in splits.values()} or {TRAIN: []}
    samples = []
    for name, parts in files:
        split = splits[parts[0]] if splits else TRAIN
        samples.append(Sample(name, split, len(targets[split])))
        targets[split].append(numbers[parts[-2]])
    return Layout(classes, samples, {split: np.array(values, dtype=np.int64) for split, values in targets.items()})
