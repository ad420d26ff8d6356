"""`set data=PATH`: looks at data of the user's own, and finds the section `source` that reads them, and facts about them for a recommendation."""

import json
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.registry import SOURCES
from pipeline.core.section import suggestion
from pipeline.core.untrusted import reason, shown
from pipeline.prepare import split
from pipeline.prepare.reading import archives, encodings, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES
from pipeline.prepare.reading.images import is_deep
from pipeline.prepare.reading.labelled_tables import visible_files
from pipeline.prepare.reading.lines import WrongLines, is_document
from pipeline.prepare.reading.split_names import split_in
from pipeline.prepare.tokens import measured
from pipeline.tools.params import columns
from pipeline.tools.params.columns import IMAGES, LABELS, TEXTS, WRITTEN, Question
from pipeline.tools.params.columns import SPLITS as SPLITS_COLUMN
from pipeline.tools.params.readings import ARRAYS, CORPUS, FOLDER, LABELLED, PAIRS, READERS, ROWS, TABLE, encoding_of, kind_of
from pipeline.tools.params.texts import VALUES, pair_values, tokenizer_values, vocabulary_values
from pipeline.tools.params.white import described_white, find_white

if TYPE_CHECKING:
    from pipeline.core.inputs.table import TableInputs
    from pipeline.core.raw_dataset import RawDataset
    from pipeline.core.spec import Targets
    from pipeline.prepare.image_files import ImageFileSettings
    from pipeline.prepare.inputs.text import TextSettings
    from pipeline.prepare.params import SourceSettings

READINGS = {
    ARRAYS: "NumPy arrays",
    FOLDER: "images in folders by class",
    TABLE: "images that a table lists",
    ROWS: "rows of numbers and categories",
    LABELLED: "labelled texts",
    PAIRS: "pairs of texts",
    CORPUS: "texts without labels, for a language model",
}
KINDS = {
    FOLDER: {"image"},
    TABLE: {"image", "table"},
    ROWS: {"table"},
    LABELLED: {"table", "text"},
    PAIRS: {"table"},
    ARRAYS: {"array"},
    CORPUS: {"text"},
}
"""The kinds of files that each source reads."""
MOST_COMPARED = 10_000
"""Up to so many images are read to find equal ones. `prepare` counts them in any case."""
DECODING_S = 10.0
MEASURED = 100
LISTED_BYTES = 2**16
"""How much of a file of text is looked at for names of images."""
MOST_CLASSES = 6
MOST_CROPPED = 0.3
"""The crop of a photograph of 4:3 cuts off a quarter."""
LARGE, RESIZED = 96, 224
"""Images whose shorter sides are mostly longer than LARGE pixels are resized to RESIZED, the size of pretrained models."""


@dataclass(frozen=True)
class Finding:
    """Holds what `set data=PATH` has found. `source` has values of the section `source` by key, and `lines` are printed."""

    source: Mapping[str, Any]
    lines: tuple[str, ...]
    files: frozenset[Path]
    """The files that are read."""
    num_samples: int
    """The samples of train, before splits are drawn; the characters of a corpus."""
    splits: frozenset[str]
    """The splits that the data have."""
    class_counts: tuple[int, ...] = ()
    """The train samples of each class; () for a corpus, and for targets that are no classes."""
    task: "Targets | None" = None
    """The description of the targets; None for a corpus."""
    texts: tuple[str, ...] = ()
    """Some texts of train, to measure them; () for images and for a corpus."""
    inputs: "TableInputs | None" = None
    """The columns of a table that are inputs; None for other inputs."""
    image_shape: tuple[int, int] = (0, 0)
    """The side in pixels and the channels of the prepared images; (0, 0) for texts."""


def look(root: Path, given: Mapping[str, Any]) -> Finding:
    """Look at the data at `root`. `given` has the keys of the section `source` that the user has set.

    Each source that seems to fit reads the data. That which leaves no table and no image unused is taken; what has no labels does not count.
    Raises Refusal if there is nothing, if no source can read the data, or if several can, or only one that leaves something unused, and
    `given` does not choose it by naming the source, a table or a column. If none can, the refusal is that of the source that reads the most kinds of files that are there.
    """
    if not root.exists():
        raise absent(root)
    if "name" in given and given["name"] not in READERS:
        raise Refusal(f"source={shown(given['name'], 60)}: does not read data of your own: {suggestion(given['name'], tuple(READERS))}")
    try:
        encodings.known(encoding_of(given))
    except ValueError as error:
        raise Refusal(f"source.encoding={shown(given['encoding'], 60)}: {error}") from None
    found, refusals = attempts(root, given)
    names = visible_files(root)
    if not found and (undecoded := next((error for error in refusals.values() if isinstance(error, encodings.NotDecoded)), None)):
        raise undecoded
    if not found:
        raise nearest(root, given, refusals, {kind_of(name) for name in names})
    unused = {name: unused_files(root, names, finding) for name, finding in found.items()}
    possible = [name for name, (labelled, _) in unused.items() if not labelled] or list(found)
    if len(possible) > 1:
        ways = " or ".join(f"source={name} ({READINGS[name]}{leaving(unused[name][0])})" for name in possible)
        raise Refusal(f"data={root}: can be read in {len(possible)} ways: add {ways}")
    [name] = possible
    if name == CORPUS and isinstance(refusals.get(LABELLED), (Question, WrongLines)):
        raise Refusal(f"{refusals[LABELLED]}; if these are texts without labels, add source={CORPUS}")
    labelled, others = unused[name]
    if labelled and not {"name", "table", IMAGES, LABELS, TEXTS} & set(given):
        if question := next((error for error in refusals.values() if isinstance(error, Question)), None):
            raise Refusal(f"{question}; to read {READINGS[name]} instead{leaving(labelled)}, add source={name}")
        raise Refusal(
            f"data={root}: can be read as {READINGS[name]}{leaving(labelled)}: to leave this out, add source={name}{why_not(refusals)}"
        )
    lines = [f"not used: {listed(summary(labelled), MOST_CLASSES)}"] if labelled else []
    lines += [f"not used, because without labels: {listed(summary(others), MOST_CLASSES)}"] if others else []
    lines += [f"not used: {listed(rest, MOST_CLASSES)}"] if (rest := unused_texts(root, names, found[name])) else []
    beside = refusals.get(ROWS)
    lines += beside.questions if name == LABELLED and isinstance(beside, Question) else ()
    return replace(found[name], lines=(*found[name].lines, *lines))


def absent(root: Path) -> Refusal:
    """Return the refusal of a path that does not exist, or that leads into an archive."""
    archive = next((folder for folder in root.parents if folder.is_file()), root)
    before, folder = archives.unpacked(archive)
    if archive == root or not before:
        return Refusal(f"data={root}: there is no such file or folder: correct the path")
    way = shlex.quote(f"data={folder / root.relative_to(archive)}")
    return Refusal(f"data={root}: is in the archive {archive}, which is only read as a whole: {before}write {way}")


def attempts(root: Path, given: Mapping[str, Any]) -> tuple[dict[str, Finding], dict[str, Refusal]]:
    """Read the data by each source that has the keys in `given`. Return what was found, and the refusals, by the name of the source."""
    having_keys = [name for name in READERS if set(given) <= set(SOURCES.settings(name).model_fields)]
    found, refusals = dict[str, Finding](), dict[str, Refusal]()
    for name in [given["name"]] if "name" in given else having_keys or READERS:
        try:
            if (values := READERS[name](root, given)) is not None:
                found[name] = describe({"name": name, "root": root, **values, **given}, given)
        except Refusal as error:
            refusals[name] = error
    return found, refusals


def nearest(root: Path, given: Mapping[str, Any], refusals: Mapping[str, Refusal], present: set[str]) -> Refusal:
    """Return the refusal of the source that a user's answer would let read the data, or that reads the most kinds of the files in `present`."""
    if not refusals:
        known = ", ".join(READINGS.values())
        return Refusal(f"data={root}: looks like none of {known}: arrange it as docs/data.md shows, or set the section `source` by hand")
    error = refusals[max(refusals, key=lambda name: (isinstance(refusals[name], Question), len(KINDS[name] & present)))]
    if isinstance(error, Question) and isinstance(pairs := refusals.get(PAIRS, error), Question) and pairs is not error:
        return Refusal(f"{error}; or {'; and '.join(pairs.questions)}")
    if present == {"text"} and "name" not in given and CORPUS not in refusals:
        return Refusal(f"{error}; if these are texts without labels, add source={CORPUS}")
    return error


def why_not(refusals: Mapping[str, Refusal]) -> str:
    """Return a sentence with the refusal of the source that would read tables with images, if there is one."""
    return f"; else: {refusals[TABLE]}" if TABLE in refusals else ""


def leaving(names: Sequence[str]) -> str:
    return f", which leaves unused: {listed(summary(names), MOST_CLASSES)}" if names else ""


def summary(names: Sequence[str]) -> list[str]:
    """Return the names of tables, and for each folder with images their number."""
    images = Counter(name.rpartition("/")[0] + "/" for name in names if kind_of(name) == "image")
    return [name for name in names if kind_of(name) != "image"] + [
        f"{shown(name)} ({counted(count, 'image')})" for name, count in images.items()
    ]


def unused_files(root: Path, names: Sequence[str], finding: Finding) -> tuple[list[str], list[str]]:
    """Return the tables, images and lists of images in `root` that are not used: those that may have labels, and those that have none.

    `names` are those of the files in `root`. Images have none if their folder is called like a test, tables if no column looks like labels.
    """
    if not root.is_dir() and root in finding.files:
        return [], []
    found: tuple[list[str], list[str]] = ([], [])
    for name in names:
        if root / name in finding.files:
            continue
        if kind_of(name) in ("image", "table"):
            found[is_unlabelled(root, name, encoding_of(finding.source))].append(name)
        elif kind_of(name) == "text" and lists_images(root / name):
            found[False].append(name)
    return found


def lists_images(path: Path) -> bool:
    """Return True if most of the first lines of a file of text contain the name of an image file, in whatever encoding."""
    try:
        with path.open("rb") as file:
            first = [line for line in file.read(LISTED_BYTES).decode("latin-1").lower().splitlines() if line.strip()]
    except OSError:  # in an archive, or not readable
        return False
    return 2 * sum(any(suffix in line for suffix in IMAGE_SUFFIXES) for line in first) > len(first)


def unused_texts(root: Path, names: Sequence[str], finding: Finding) -> list[str]:
    """Return the other files in `root` that a reading of labelled texts does not use, and for each folder with such files their number."""
    if finding.source["name"] != LABELLED or not root.is_dir():
        return []
    rest = [name for name in names if kind_of(name) in ("text", "other") and root / name not in finding.files and not is_document(name)]
    folders = Counter(name.rpartition("/")[0] for name in rest if "/" in name)
    return [name for name in rest if "/" not in name] + [f"{shown(name)}/ ({counted(count, 'file')})" for name, count in folders.items()]


def is_unlabelled(root: Path, name: str, encoding: str) -> bool:
    if kind_of(name) == "image":
        return any(split_in(part) == TEST for part in name.split("/")[:-1])
    try:
        table = columns.read(root / name, encoding=encoding) if root.is_dir() else None
        return table is not None and not (columns.label_columns(table) or columns.list_columns(table))
    except Refusal:
        return tables.suffix_of(Path(name)) == ".json"  # which is often no table


def describe(values: Mapping[str, Any], given: Mapping[str, Any]) -> Finding:
    """Open the dataset that `values`, the section `source`, describe, and return what it has. The user has set `given` of them."""
    name, root = str(values["name"]), Path(values["root"])
    if name == CORPUS:
        return describe_corpus(values)
    if name in (LABELLED, PAIRS):
        values = {**VALUES.get(str(given.get("tokenizer", "word" if name == LABELLED else None)), {}), **values}
    facts, image_lines = image_facts(values) if name in (FOLDER, TABLE) else ({}, [])
    # equal samples are found by their contents, which are the keys for `together`
    settings = settings_of({**values, **facts, "duplicates": "together"})
    dataset = settings.open(workers=1)
    dataset.task.refuse_unlearnable(dataset.targets[TRAIN], f"{root}: train")
    assigned = split.assign(dataset.targets, dataset.task, valid=settings.valid, test=settings.test, seed=settings.seed)
    files = used_files(settings, dataset)
    targets = {split: dataset.targets[split] for split in SPLITS if split in dataset.targets}
    counts = Counter(targets[TRAIN].tolist()) if dataset.task.has_classes else Counter[int]()
    class_counts = tuple(counts[number] for number in range(len(dataset.task.output_names))) if counts else ()
    lines = [f"{root}: {READINGS[name]}: " + ", ".join(f"{len(numbers)} samples of {split}" for split, numbers in targets.items())]
    lines += [
        f"{key}: {shown(values[key], 60)}"
        for key in (IMAGES, TEXTS, LABELS, columns.DELIMITER, WRITTEN, SPLITS_COLUMN)
        if values.get(key) is not None
    ]
    if counts:
        lines.append(described_classes(dataset.task.output_names, class_counts))
        lines += absent_classes(dataset, assigned[TRAIN])
    elif dataset.task.has_labels:
        lines.append(described_labels(dataset.task.output_names, targets[TRAIN]))
    else:
        lines += described_numbers(dataset.task.output_names, targets[TRAIN])
    texts, inputs = list[str](), None
    if name == LABELLED:
        assert dataset.drawing_keys is not None
        texts = [text.decode("utf-8", "surrogatepass") for text in dataset.drawing_keys()]
        chosen, described = tokenizer_values(cast("TextSettings", settings), given, texts)
        values = {**values, **chosen}
        lines += [*described, *quoted(files, texts)]
    elif name == ROWS:
        dataset.fit(assigned)
        inputs = cast("TableInputs", dataset.statistics.inputs())
    elif name == PAIRS:
        pairs = settings.read()[0][TRAIN]  # type: ignore[attr-defined]
        chosen, described = pair_values(cast("TextSettings", settings), given, [(pair.text, pair.target) for pair in pairs])
        values = {**values, **chosen}
        lines += described
    elif name == ARRAYS:
        facts = {"image_size": dataset.statistics.row_shape[0], "channels": dataset.statistics.row_shape[2]}
        lines.append("images of {}x{} with {} channels".format(*dataset.statistics.row_shape))
    else:
        lines += [*described_images(cast("ImageFileSettings", settings), facts), *image_lines]
    if (name in (ROWS, LABELLED, PAIRS) or len(targets[TRAIN]) <= MOST_COMPARED) and dataset.drawing_keys:
        repeated = len(targets[TRAIN]) - len(set(dataset.drawing_keys()))
        lines.append(f"{repeated} samples of train equal an earlier one" if repeated else "no two samples of train are equal")
        lines += contradictions(dataset)
    lines += dataset.notes
    shape = (facts["image_size"], facts["channels"]) if facts else (0, 0)
    return Finding(
        {**values, **(facts if name != ARRAYS else {})},
        tuple(lines),
        files,
        len(targets[TRAIN]),
        frozenset(targets),
        class_counts,
        dataset.task.fitted(targets[TRAIN]),
        tuple(measured(texts)),
        inputs,
        shape,
    )


def absent_classes(dataset: "RawDataset", assigned: NDArray[np.str_]) -> list[str]:
    """Return a line about each split that lacks classes. `assigned` has the splits of the samples that the data have in train."""
    names = dataset.task.output_names
    drawn = {part: dataset.targets[TRAIN][assigned == part] for part in np.unique(assigned).tolist()}
    lacking = defaultdict[str, list[str]](list)
    for part, numbers in {**drawn, **dataset.targets}.items():
        absent = listed([shown(label, 40) for at, label in enumerate(names) if at not in numbers], MOST_CLASSES)
        why = "" if part in dataset.targets else ", because train keeps the last sample of a class"
        lacking[f"no samples of {absent}{why}"] += [part] if absent else []
    return [f"warning: {', '.join(parts)} {'have' if parts[1:] else 'has'} {what}" for what, parts in lacking.items() if parts]


def describe_corpus(values: Mapping[str, Any]) -> Finding:
    settings = settings_of(values)
    documents = list(SOURCES.module(CORPUS).read(settings.root, values.get("pattern", "*"), encoding_of(values)))
    num_characters = sum(len(document.text) for document in documents)
    if not num_characters:
        raise Refusal(f"data={settings.root}: has no text: add files, or change source.pattern")
    lines = [f"{settings.root}: {READINGS[CORPUS]}: {num_characters} characters in {len(documents)} files"]
    sizes, described = vocabulary_values(values, [document.text for document in documents])
    return Finding({**values, **sizes}, (*lines, *described), frozenset(), num_characters, frozenset())


def used_files(settings: "SourceSettings", dataset: "RawDataset") -> frozenset[Path]:
    """Return the files that a source reads: its tables, images or texts."""
    root = settings.root
    has_tables = settings.name in (TABLE, ROWS, LABELLED, PAIRS)
    found = [path for paths in settings.tables().values() for path in paths] if has_tables else []  # type: ignore[attr-defined]
    names = [name for several in dataset.sample_keys().values() for name in several] if dataset.sample_keys else []
    of_lines = {name.rpartition(":")[0] for name in names} if settings.name == LABELLED and root.is_dir() else set()
    return frozenset([*found, *(root / name for name in {*names, *of_lines})])


def contradictions(dataset: "RawDataset") -> list[str]:
    """Return a line about equal samples of train with different labels, if there are any."""
    labels: dict[Any, set[Any]] = {}
    assert dataset.drawing_keys is not None
    targets = [str(target) for target in dataset.targets[TRAIN].tolist()]
    pairs = list(zip(dataset.drawing_keys(), targets, strict=True))
    for key, target in pairs:
        labels.setdefault(key, set()).add(target)
    count = sum(len(labels[key]) > 1 for key, _ in pairs)
    return [f"warning: {count} samples of train equal another one that has another label"] if count else []


def settings_of(values: Mapping[str, Any]) -> "SourceSettings":
    """Return the settings of the source with its recommended values, and `values` instead of some. Raises Refusal if one is invalid."""
    kind = SOURCES.settings(str(values["name"]))
    try:
        chosen = {"name": values["name"], **kind.recommended(name=values["name"], task=kind.TASK), **values}
        return cast("SourceSettings", kind.model_validate_json(json.dumps(chosen, default=str)))
    except ValidationError as error:
        problem = error.errors()[0]
        raise Refusal(f"source.{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}") from None


def described_classes(names: tuple[str, ...], counts: tuple[int, ...]) -> str:
    ordered = sorted(zip(counts, names, strict=True), reverse=True)
    shares = [f"{shown(name, 40)} {count} ({count / max(1, sum(counts)):.1%})" for count, name in ordered]
    return f"{len(names)} classes: {listed(shares, MOST_CLASSES)}"


def described_labels(names: Sequence[str], targets: NDArray[np.uint8]) -> str:
    """Return a line about the labels of the targets (samples, labels) of train, the most frequent first."""
    counts = targets.sum(axis=0, dtype=np.int64)
    ordered = sorted(zip(counts.tolist(), names, strict=True), reverse=True)
    frequent = listed([f"{shown(name, 40)} {count} ({count / len(targets):.1%})" for count, name in ordered], MOST_CLASSES)
    none = int((targets.sum(axis=1) == 0).sum())
    return f"{len(names)} labels, {counts.sum() / len(targets):.2f} a sample on average, and {none} samples without: {frequent}"


def described_numbers(names: Sequence[str], numbers: NDArray[np.float64]) -> list[str]:
    """Return a line about each column of the targets (samples, columns) of train."""
    columns_of = zip(names, numbers.T, strict=True)
    return [f"{shown(name, 40)}: numbers from {each.min():g} to {each.max():g}, {each.mean():g} on average" for name, each in columns_of]


def quoted(used: Iterable[Path], texts: Sequence[str]) -> list[str]:
    """Return a line about texts of a `.tsv` in quotes, as pandas writes them, if most are."""
    tsv = [path for path in sorted(used) if tables.suffix_of(path) == ".tsv"]
    if not tsv or 2 * sum(len(text) > 1 and text.startswith('"') and text.endswith('"') for text in texts) < len(texts):
        return []
    return [
        f"warning: most texts are in quotes, which are kept in a .tsv: rename {tsv[0]} to {tsv[0].with_suffix('.csv')}, where they are read"
    ]


def image_facts(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the size and the number of channels to which the images should be converted, and the value that means white, from some of them.

    Also returns a line about what the centre crop cuts off, if it is more than MOST_CROPPED of most images, and one about white. Raises
    Refusal if no image can be read, and Question like `find_white`.
    """
    from PIL import Image, ImageMode

    settings = cast("ImageFileSettings", settings_of(values))
    tree, layout = settings.files()
    names = [sample.name for sample in layout.samples][:: max(1, len(layout.samples) // MEASURED)]
    sides, modes, reasons = list[tuple[int, int]](), set[str](), list[str]()
    brightest, shallow = dict[str, float](), list[str]()
    with tree.contents(names) as members:
        for member in members:
            try:
                with Image.open(BytesIO(member.read())) as image:
                    sides.append((min(image.size), max(image.size)))
                    modes.add(ImageMode.getmode(image.mode).basemode)
                    if not is_deep(image):
                        shallow.append(member.name)
                    elif image.width * image.height <= settings.max_pixels:
                        highest = float(np.asarray(image).max())
                        brightest |= {member.name: highest} if math.isfinite(highest) else {}  # the decoder reports it
            except Exception as error:  # Pillow may raise any exception; `described_images` names the damaged ones
                reasons.append(f"{shown(member.name)} ({reason(error)})")
    if not sides:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
        raise Refusal(f"{settings.place}: none of its images can be read: {listed(reasons, 1)}: convert or repair them")
    side = sorted(sides)[len(sides) // 2][0]
    shares = sorted(1 - short / long for short, long in sides)
    cropped = shares[len(shares) // 2]
    white = values["white"] if "white" in values else find_white(settings.root, brightest, shallow)
    facts = {"image_size": side if side <= LARGE else RESIZED, "channels": 1 if modes == {"L"} else 3, "white": white}
    line = f"images are not square: a crop to the middle cuts off {cropped:.0%} of an image (median), {shares[-1]:.0%} at most"
    lines = [line] if cropped > MOST_CROPPED else []
    lines += described_white(white, brightest)
    return facts | {key: values[key] for key in facts if key in values}, lines


def described_images(settings: "ImageFileSettings", facts: Mapping[str, Any]) -> list[str]:
    lines = [
        f"images are stored as {facts['image_size']}x{facts['image_size']} with {facts['channels']} channels (source.image_size, source.channels)"
    ]
    try:
        settings.refuse_damaged(workers=1, within_s=DECODING_S)
    except Refusal as error:
        lines.append(f"warning: {error}")
    return lines
