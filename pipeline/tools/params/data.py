"""`set data=PATH`: looks at data of the user's own, and finds the section `source` that reads them, and facts about them for a recommendation."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from pipeline.core.raw_dataset import SPLITS, TRAIN
from pipeline.core.refusal import Refusal, listed
from pipeline.core.registry import SOURCES
from pipeline.core.section import suggestion
from pipeline.core.untrusted import shown
from pipeline.prepare import split
from pipeline.prepare.reading import archives, class_folders, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, ClassFolders, visible_parts
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
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
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
    """Holds what `set data=PATH` has found. `source` has values of the section `source` by key, and `lines` are printed."""

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
    if "name" in given and given["name"] not in READERS:
        raise Refusal(f"source={shown(given['name'], 60)}: does not read data of your own: {suggestion(given['name'], tuple(READERS))}")
    found, refusals = list[dict[str, Any]](), list[Refusal]()
    for name in [given["name"]] if "name" in given else READERS:
        try:
            values = READERS[name](root, given)
        except Refusal as error:
            refusals.append(error)
        else:
            found += [{"name": name, "root": root, **values}] if values is not None else []
    if len(found) > 1:
        ways = " or ".join(f"source={values['name']} ({READINGS[values['name']]})" for values in found)
        raise Refusal(f"data={root}: can be read in {len(found)} ways: add {ways}")
    if found:
        return describe({**found[0], **given})
    if refusals:
        raise refusals[0]
    known = ", ".join(READINGS.values())
    raise Refusal(f"data={root}: looks like none of {known}: arrange it as docs/data.md shows, or set the section `source` by hand")


def as_image_folder(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001  # as the other readers
    layout = class_layout(root, IMAGE_SUFFIXES)
    return {} if layout and any(is_image(sample.name) for sample in layout.samples) else None


def as_image_table(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the images and labels, and the table, if `root` is such a table or a folder with one."""
    if root.is_dir():
        names = [given["table"]] if "table" in given else [path.name for path in sorted(root.iterdir()) if is_table(path)]
        paths = [root / name for name in names]
    else:
        paths = [root] if is_table(root) else []
    fitting = {path: table for path in paths if (table := columns.read(path)) and (table.holds_images or columns.paths(table, path.parent))}
    if not fitting:
        return None
    if len(fitting) > 1:
        raise Refusal(f"data={root}: {len(fitting)} tables list images: add {' or '.join(f'source.table={path.name}' for path in fitting)}")
    [(path, table)] = fitting.items()
    label = columns.chosen(path, table, LABELS, given, columns.is_label)
    if table.holds_images and given.get(IMAGES) not in table.columns:
        images = columns.Table({name: [] for name in table.holds_images})
        image = columns.chosen(path, images, IMAGES, given, lambda _: True)
        return {"root": path, "table": None, IMAGES: image, LABELS: label}
    image = columns.chosen(path, table, IMAGES, given, lambda values: columns.is_path(values, path.parent))
    return {"root": path.parent, "table": Path(path.name), IMAGES: image, LABELS: label}


def as_labelled_texts(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    found = SOURCES.module(LABELLED).find_tables(root)
    if found:
        path, table = found[TRAIN], columns.read(found[TRAIN])
        if TEXTS not in given and (columns.paths(table, path.parent) or table.holds_images) and not columns.texts(table):
            return None
        return {
            TEXTS: columns.chosen(path, table, TEXTS, given, columns.is_text),
            LABELS: columns.chosen(path, table, LABELS, given, columns.is_label),
        }
    layout = class_layout(root, TEXT_SUFFIXES)
    return {TEXTS: None, LABELS: None} if layout and not all(is_image(sample.name) for sample in layout.samples) else None


def as_arrays(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001  # as the other readers
    is_folder = root.is_dir() and any(path.suffix == ".npy" for path in root.iterdir())
    return {} if is_folder or root.suffix.lower() == ".npz" else None


def as_corpus(root: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    if "name" in given:
        return {}
    with suppress(Refusal):
        if class_layout(root, TEXT_SUFFIXES):
            return None
    names = visible_files(root) if root.is_dir() else [root.name]
    return {} if names and all(name.lower().endswith(TEXT_SUFFIXES) for name in names) else None


READERS: dict[str, Callable[[Path, Mapping[str, Any]], dict[str, Any] | None]] = {
    FOLDER: as_image_folder,
    TABLE: as_image_table,
    LABELLED: as_labelled_texts,
    ARRAYS: as_arrays,
    CORPUS: as_corpus,
}
"""For each source a function that returns its values for the data at a path, or None if they are no such data.

It raises Refusal if they seem to be, and cannot be read, or if a key of `source` must decide. With `source=NAME`, only its function is called.
"""


def class_layout(root: Path, suffixes: tuple[str, ...]) -> ClassFolders | None:
    """Return the classes and files of a folder or archive, or None if no file in a folder of it has one of `suffixes`.

    Raises the Refusal of `find_classes` if the files are not arranged by class.
    """
    if not root.is_dir() and not root.name.lower().endswith(ARCHIVES):
        return None
    listing = archives.open_tree(root).listing()
    if not any("/" in name and name.lower().endswith(suffixes) for name in listing.files if visible_parts(name)):
        return None
    return class_folders.find_classes(listing, str(root))


def visible_files(root: Path) -> list[str]:
    return [name for name in archives.open_tree(root).listing().files if visible_parts(name)]


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in tables.FORMATS and path.is_file()


def describe(values: Mapping[str, Any]) -> Finding:
    """Open the dataset that `values`, the section `source`, describe, and return what it has."""
    name, root = str(values["name"]), Path(values["root"])
    if name == CORPUS:
        return describe_corpus(values)
    facts = image_facts(values) if name in (FOLDER, TABLE) else {}
    # equal samples are found by their contents, which are the keys for `together`
    settings = settings_of({**values, **facts, "duplicates": "together"})
    dataset = settings.open(workers=1)
    dataset.task.refuse_unlearnable(dataset.targets[TRAIN], f"{root}: train")
    split.assign(dataset.targets, dataset.task, valid=settings.valid, test=settings.test, seed=settings.seed)
    targets = {split: dataset.targets[split] for split in SPLITS if split in dataset.targets}
    counts = Counter(targets[TRAIN].tolist())
    class_counts = tuple(counts[number] for number in range(len(dataset.task.output_names)))
    lines = [f"{root}: {READINGS[name]}: " + ", ".join(f"{len(numbers)} samples of {split}" for split, numbers in targets.items())]
    lines += [f"{key}: {shown(values[key], 60)}" for key in (IMAGES, TEXTS, LABELS) if values.get(key) is not None]
    lines.append(described_classes(dataset.task.output_names, class_counts))
    longest = 0
    if name == LABELLED:
        longest, line = described_lengths(dataset)
        lines.append(line)
    elif name == ARRAYS:
        facts = {"image_size": dataset.statistics.row_shape[0], "channels": dataset.statistics.row_shape[2]}
        lines.append("images of {}x{} with {} channels".format(*dataset.statistics.row_shape))
    else:
        lines += described_images(cast("ImageFileSettings", settings), facts)
    if (name == LABELLED or len(targets[TRAIN]) <= MOST_COMPARED) and dataset.drawing_keys:
        repeated = len(targets[TRAIN]) - len(set(dataset.drawing_keys()))
        lines.append(f"{repeated} samples of train equal an earlier one" if repeated else "no two samples of train are equal")
    shape = (int(facts["image_size"]), int(facts["channels"])) if facts else (0, 0)
    return Finding(
        {**values, **(facts if name != ARRAYS else {})}, tuple(lines), len(targets[TRAIN]), frozenset(targets), class_counts, longest, shape
    )


def describe_corpus(values: Mapping[str, Any]) -> Finding:
    settings = settings_of(values)
    documents = list(SOURCES.module(CORPUS).read(settings.root, values.get("pattern", "*")))
    num_characters = sum(len(document.text) for document in documents)
    if not num_characters:
        raise Refusal(f"data={settings.root}: has no text: add files, or change source.pattern")
    line = f"{settings.root}: {READINGS[CORPUS]}: {num_characters} characters in {len(documents)} files"
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
            with suppress(Exception), Image.open(BytesIO(member.read())) as image:  # `described_images` names the damaged ones
                sides.append(min(image.size))
                modes.add(image.mode)
    side = sorted(sides)[len(sides) // 2] if sides else RESIZED
    return {"image_size": side if side <= LARGE else RESIZED, "channels": 1 if modes and modes <= set(GREY) else 3} | {
        key: values[key] for key in ("image_size", "channels") if key in values
    }


def described_images(settings: "ImageFileSettings", facts: Mapping[str, int]) -> list[str]:
    lines = [
        f"images are stored as {facts['image_size']}x{facts['image_size']} with {facts['channels']} channels (source.image_size, source.channels)"
    ]
    try:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
    except Refusal as error:
        lines.append(f"warning: {error}")
    return lines
