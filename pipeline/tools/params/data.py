"""`set data=PATH`: looks at data of the user's own, and finds the section `source` that reads them, and facts about them for a recommendation."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from pipeline.core.raw_dataset import SPLITS, TRAIN
from pipeline.core.refusal import Refusal, listed
from pipeline.core.registry import SOURCES
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import archives, class_folders, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, visible_parts
from pipeline.prepare.reading.file_tree import READ_ERRORS, Listing
from pipeline.tools.params import columns
from pipeline.tools.params.columns import IMAGES, LABELS, TEXTS

if TYPE_CHECKING:
    from pipeline.core.raw_dataset import RawDataset
    from pipeline.prepare.image_files import ImageFileSettings
    from pipeline.prepare.params import SourceSettings

ARRAYS, FOLDER, TABLE, LABELLED, CORPUS = "arrays", "image_folder", "image_table", "text_classification", "text"
READINGS = {
    ARRAYS: "NumPy arrays",
    FOLDER: "images in folders by class",
    TABLE: "images that a table lists",
    LABELLED: "labelled texts",
    CORPUS: "texts without labels, for a language model",
}
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
MOST_COMPARED = 10_000
"""Up to so many images are read to find equal ones. `prepare` counts them in any case."""
DECODING_S = 10.0
MEASURED = 100
MOST_CLASSES = 6
GREY = ("1", "L", "LA", "I", "I;16", "F")
LARGE, RESIZED = 96, 224
"""Images whose shorter sides are mostly longer than LARGE pixels are resized to RESIZED, the size of pretrained models."""


@dataclass(frozen=True)
class Finding:
    """What `set data=PATH` has seen. `source` has values of the section `source` by key, and `lines` say it to the user."""

    source: Mapping[str, Any]
    lines: tuple[str, ...]
    num_samples: int
    """The samples of train, before splits are drawn; the characters of a corpus."""
    splits: frozenset[str]
    """The splits that the data have."""
    class_counts: tuple[int, ...] = ()
    """The train samples of each class; () for a corpus."""
    longest_words: int = 0
    """The number of words that 98% of the texts do not exceed; 0 for images."""
    image_shape: tuple[int, int] = (0, 0)
    """The side in pixels and the channels of the prepared images; (0, 0) for texts."""


def look(root: Path, given: Mapping[str, Any]) -> Finding:
    """Look at the data at `root`. `given` has the keys of the section `source` that the user has set.

    Raises Refusal if there is nothing, if the data cannot be read, or if they can be read in several ways and `given` does not choose one.
    """
    if not root.exists():
        raise Refusal(f"data={root}: there is no such file or folder: correct the path")
    found = [reading for reading in readings(root, given) if given.get("name", reading["name"]) == reading["name"]]
    names = sorted({str(reading["name"]) for reading in found})
    if not names:
        known = ", ".join(READINGS.values())
        raise Refusal(f"data={root}: looks like none of {known}: arrange it as docs/data.md shows, or set the section `source` by hand")
    if len(names) > 1:
        ways = " or ".join(f"source={name} ({READINGS[name]})" for name in names)
        raise Refusal(f"data={root}: can be read in {len(names)} ways: add {ways}")
    return describe({**found[0], **given})


def readings(root: Path, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values of the section `source` for each way in which `root` can be read."""
    suffix = root.suffix.lower()
    if root.is_dir():
        yield from folder_readings(root, given)
    elif suffix in tables.FORMATS:
        yield from table_readings(root, root, given)
    elif suffix == ".npz":
        yield {"name": ARRAYS, "root": root}
    elif root.name.lower().endswith(ARCHIVES):
        yield from file_readings(root, archives.open_tree(root).listing())
    else:
        yield {"name": CORPUS, "root": root}


def folder_readings(root: Path, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    listing = archives.open_tree(root).listing()
    names = [name for name in listing.files if visible_parts(name)]
    by_split = {Path(name).stem.lower() for name in names if "/" not in name and name.lower().endswith((*tables.FORMATS,))}
    if by_split & {TRAIN}:
        table = next(root / name for name in names if Path(name).stem.lower() == TRAIN)
        yield from table_readings(root, table, given)
        return
    if any(name.endswith(".npy") for name in names):
        yield {"name": ARRAYS, "root": root}
    yield from file_readings(root, listing)
    listing_images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    for name in names:
        if listing_images and "/" not in name and Path(name).suffix.lower() in tables.FORMATS:
            yield from (each for each in table_readings(root, root / name, given) if each["name"] == TABLE)


def file_readings(root: Path, listing: Listing) -> Iterator[dict[str, Any]]:
    """Yield the readings of files by class, or of a folder of texts."""
    names = [name for name in listing.files if visible_parts(name)]
    num_images = sum(name.lower().endswith(IMAGE_SUFFIXES) for name in names)
    try:
        layout = class_folders.find_classes(listing, str(root))
    except Refusal:
        if num_images:
            return
        if root.is_dir() and names:
            yield {"name": CORPUS, "root": root}
        return
    pictures = sum(sample.name.lower().endswith(IMAGE_SUFFIXES) for sample in layout.samples)
    if pictures:
        yield {"name": FOLDER, "root": root}
    if pictures < len(layout.samples):
        yield {"name": LABELLED, "root": root, TEXTS: None, LABELS: None}


def table_readings(root: Path, path: Path, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the readings of the table `path`: `root` is the table itself, or the folder with one table for each split."""
    table = columns.read(path)
    paths = [name for name, values in table.columns.items() if columns.is_path(values, path.parent)]
    label = columns.chosen(path, table, LABELS, given, columns.is_label)
    if table.holds_images or IMAGES in given:
        fitting = [*table.holds_images] if len(table.holds_images) == 1 else []
        image = given.get(IMAGES) or (fitting[0] if fitting else columns.chosen(path, table, IMAGES, given, lambda _: False))
        inside = (
            {"root": root, "table": None} if image in table.holds_images else {"root": path.parent, "table": path.relative_to(path.parent)}
        )
        yield {"name": TABLE, **inside, IMAGES: image, LABELS: label}
    elif paths:
        image = columns.chosen(path, table, IMAGES, given, lambda values: columns.is_path(values, path.parent))
        yield {"name": TABLE, "root": path.parent, "table": path.relative_to(path.parent), IMAGES: image, LABELS: label}
    if TEXTS in given or not (paths or table.holds_images) or any(map(columns.is_text, table.columns.values())):
        text = columns.chosen(path, table, TEXTS, given, columns.is_text)
        yield {"name": LABELLED, "root": root, TEXTS: text, LABELS: label}


def describe(values: Mapping[str, Any]) -> Finding:
    """Open the dataset that `values`, the section `source`, describe, and return what it has."""
    name, root = str(values["name"]), Path(values["root"])
    if name == CORPUS:
        return describe_corpus(values)
    facts = image_facts(values) if name in (FOLDER, TABLE) else {}
    settings = settings_of({**values, **facts})
    dataset = settings.open(workers=1)
    dataset.task.refuse_unlearnable(dataset.targets[TRAIN], str(root))
    targets = {split: dataset.targets[split] for split in SPLITS if split in dataset.targets}
    counts = Counter(targets[TRAIN].tolist())
    class_counts = tuple(counts[number] for number in range(len(dataset.task.output_names)))
    lines = [f"{root}: {READINGS[name]}: " + ", ".join(f"{len(numbers)} samples of {split}" for split, numbers in targets.items())]
    lines += [f"{key}: {values[key]}" for key in (IMAGES, TEXTS, LABELS) if values.get(key) is not None]
    lines.append(described_classes(dataset.task.output_names, class_counts))
    longest = 0
    if name == LABELLED:
        longest, line = described_lengths(dataset)
        lines.append(line)
    elif name == ARRAYS:
        facts = {"size": dataset.statistics.row_shape[0], "channels": dataset.statistics.row_shape[2]}
        lines.append("images of {}x{} with {} channels".format(*dataset.statistics.row_shape))
    else:
        lines += described_images(cast("ImageFileSettings", settings), facts)
    if (name == LABELLED or len(targets[TRAIN]) <= MOST_COMPARED) and dataset.drawing_keys:
        repeated = len(targets[TRAIN]) - len(set(dataset.drawing_keys()))
        lines.append(f"{repeated} samples of train equal an earlier one" if repeated else "no two samples of train are equal")
    shape = (int(facts["size"]), int(facts["channels"])) if facts else (0, 0)
    return Finding(
        {**values, **(facts if name != ARRAYS else {})}, tuple(lines), len(targets[TRAIN]), frozenset(targets), class_counts, longest, shape
    )


def describe_corpus(values: Mapping[str, Any]) -> Finding:
    root = Path(values["root"])
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file() and visible_parts(path.name))
    num_characters = sum(len(tables.read_text(path)) for path in files)
    line = f"{root}: {READINGS[CORPUS]}: {num_characters} characters in {len(files)} files"
    return Finding(values, (line,), num_characters, frozenset())


def settings_of(values: Mapping[str, Any]) -> "SourceSettings":
    """Return the settings of the source with its recommended values, and `values` instead of some. Raises Refusal if one is invalid."""
    kind = SOURCES.settings(str(values["name"]))
    try:
        chosen = {"name": values["name"], **kind.recommended(name=values["name"], task=kind.task), **values}
        return cast("SourceSettings", kind.model_validate_json(json.dumps(chosen, default=str)))
    except ValidationError as error:
        problem = error.errors()[0]
        raise Refusal(f"source.{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}") from None


def described_classes(names: tuple[str, ...], counts: tuple[int, ...]) -> str:
    ordered = sorted(zip(counts, names, strict=True), reverse=True)
    shares = [f"{shown(name, 40)} {count} ({count / max(1, sum(counts)):.1%})" for count, name in ordered]
    return f"{len(names)} classes: {listed(shares, MOST_CLASSES)}"


def described_lengths(dataset: "RawDataset") -> tuple[int, str]:
    """Return the number of words that 98% of the texts do not exceed, and a line about the lengths of the texts."""
    assert dataset.drawing_keys is not None
    lengths = sorted(len(text.split()) for text in dataset.drawing_keys())
    longest = lengths[int(0.98 * (len(lengths) - 1))]
    return longest, f"texts of {lengths[0]} to {lengths[-1]} words, {lengths[len(lengths) // 2]} in the middle, 98% of at most {longest}"


def image_facts(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the size and the number of channels to which the images should be converted, from the headers of some of them."""
    from PIL import Image

    settings = cast("ImageFileSettings", settings_of(values))
    tree, layout = settings.files()
    names = [sample.name for sample in layout.samples][:: max(1, len(layout.samples) // MEASURED)]
    sides, modes = list[int](), set[str]()
    with tree.contents(names) as members:
        for member in members:
            try:
                with Image.open(BytesIO(member.read())) as image:
                    sides.append(min(image.size))
                    modes.add(image.mode)
            except READ_ERRORS:
                continue  # told by `described_images`
    side = sorted(sides)[len(sides) // 2] if sides else RESIZED
    return {"size": side if side <= LARGE else RESIZED, "channels": 1 if modes and modes <= set(GREY) else 3} | {
        key: values[key] for key in ("size", "channels") if key in values
    }


def described_images(settings: "ImageFileSettings", facts: Mapping[str, int]) -> list[str]:
    lines = [f"images are stored as {facts['size']}x{facts['size']} with {facts['channels']} channels (source.size, source.channels)"]
    try:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
    except Refusal as error:
        lines.append(f"warning: {error}")
    return lines
