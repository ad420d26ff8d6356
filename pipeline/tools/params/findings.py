"""Describes data that a source can read, for `set data=PATH`: their splits, classes, numbers and equal samples, and what a recommendation needs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.params import validate
from pipeline.core.raw_dataset import SPLITS, TRAIN, RawDataset
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.registry import SOURCES
from pipeline.core.spec import Inputs, Targets
from pipeline.core.untrusted import shown
from pipeline.prepare.inputs.tokens import measured
from pipeline.prepare.params import PrepareParams, SourceSettings
from pipeline.prepare.reading import tables
from pipeline.prepare.reading.labelled_tables import Keys
from pipeline.prepare.reading.line_files import find_line_files
from pipeline.prepare.reading.streams import looking
from pipeline.prepare.reading.table_formats import is_document
from pipeline.prepare.split import ranks_of
from pipeline.prepare.stage import survey
from pipeline.tools.params import images
from pipeline.tools.params.cell_values import VALUES, pair_values, quoted, tokenizer_values, vocabulary_values
from pipeline.tools.params.readings import READERS
from pipeline.tools.params.table import Given, encoding_of

MOST_COMPARED = 10_000
"""Up to so many images are read to find equal ones. `prepare` counts them in any case."""
MOST_CLASSES = 6


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
    task: Targets | None = None
    """The description of the targets; None for a corpus."""
    texts: tuple[str, ...] = ()
    """Some texts of train, to measure them; () for images and for a corpus."""
    inputs: Inputs | None = None
    """The columns of a table that are inputs; None for other inputs."""
    image_shape: tuple[int, int] = (0, 0)
    """The side in pixels and the channels of the prepared images; (0, 0) for texts."""


def describe(values: Mapping[str, Any], given: Given) -> Finding:
    """Open the dataset that `values`, the section `source`, describe, and return what it has. The user has set `given` of them."""
    name, root = str(values["name"]), Path(values["root"])
    if name == "text":
        return describe_corpus(values)
    if name in ("text_classification", "text_pairs"):
        values = {**VALUES.get(str(given.get("tokenizer", "word" if name == "text_classification" else None)), {}), **values}
    image_lines = list[str]()
    if name in ("image_folder", "image_table"):
        of_images, image_lines = images.image_facts(params_of(values).source, values)  # type: ignore[arg-type]  # its settings are ImageFileSettings
        values = {**values, **of_images}
    # equal samples are found by their contents, which are the keys for `together`
    params = params_of({**values, "duplicates": "together"})
    settings = params.source
    with looking() as seen:
        dataset, assigned = survey(params, workers=1, quick=True)
        is_compared = name in ("table", "text_classification", "text_pairs") or len(dataset.targets[TRAIN]) <= MOST_COMPARED
        equal = equal_samples(dataset) if is_compared and values.get("group_column") is None else []
        of_inputs, input_lines, facts = described_inputs(settings, dataset, given, assigned)
    values = {**values, **of_inputs}
    targets = {split: dataset.targets[split] for split in SPLITS if split in dataset.targets}
    paths: Mapping[str, Sequence[Path]] = getattr(settings, "tables", dict)()
    counts = {split: round(len(numbers) / seen.share(paths.get(split, ()))) for split, numbers in targets.items()}
    looked = "" if seen.share() == 1 else f" ({seen.share():.0%} was looked at: its beginning, middle and end)"
    keys = ("image_column", "text_column", "label_column", "label_delimiter", "target_column", "split_column")
    lines = [
        f"{root}: {READERS[name].title}: "
        + ", ".join(f"{'about ' * bool(looked)}{count} samples of {split}" for split, count in counts.items())
        + looked,
        *(f"{key}: {shown(values[key], 60)}" for key in keys if values.get(key) is not None),
        *unused_columns(settings, values, paths.get(TRAIN, ())),
        *described_targets(dataset, assigned[TRAIN]),
        *input_lines,
        *image_lines,
        *equal,
        *dataset.notes,
    ]
    return Finding(
        values,
        tuple(lines),
        used_files(settings, dataset),
        counts[TRAIN],
        frozenset(targets),
        tuple(class_counts(dataset)),
        dataset.task.fitted(targets[TRAIN]),
        **facts,
    )


def unused_columns(settings: Any, values: Mapping[str, Any], paths: Sequence[Path]) -> list[str]:
    """Return a line about the columns of the table of train that a source of texts does not use."""
    if settings.name not in ("text_classification", "text_pairs") or not paths or getattr(settings, "line_files", dict)():
        return []
    names: Sequence[Any] = tables.names(paths[0], encoding=settings.encoding)
    if isinstance(values["text_column"], int):
        names = range(1, len(names) + 1)
    labels = values.get("label_column")
    used = {*(labels if isinstance(labels, list | tuple) else [labels])}
    used |= {values.get(key) for key in ("text_column", "target_column", "split_column", "group_column")}
    rest = [shown(name, 40) for name in names if name not in used]
    return [f"columns not used: {listed(rest, MOST_CLASSES)}"] if rest else []


def described_inputs(
    settings: Any, dataset: RawDataset, given: Given, assigned: Mapping[str, NDArray[np.str_]]
) -> tuple[Mapping[str, Any], Sequence[str], dict[str, Any]]:
    """Return what was found about the inputs: values of the section `source`, lines to print, and fields of Finding."""
    if settings.name == "text_classification":
        assert dataset.drawing_keys is not None
        texts = [text.decode("utf-8", "surrogatepass") for text in dataset.drawing_keys()]
        chosen, lines = tokenizer_values(settings, given, texts)
        return chosen, [*lines, *quoted(settings, texts)], {"texts": tuple(measured(texts))}
    if settings.name == "text_pairs":
        blocks = [pairs for pairs in settings.pairs(settings.labelled()) if pairs.split == TRAIN]
        return *pair_values(settings, given, [pair for pairs in blocks for pair in zip(*pairs.columns, strict=True)]), {}
    if settings.name == "table":
        dataset.fit(assigned)
        return {}, [], {"inputs": dataset.statistics.inputs()}
    height, width, channels = dataset.statistics.row_shape
    if settings.name == "arrays":
        return {}, [f"images of {height}x{width} with {channels} channels"], {"image_shape": (height, channels)}
    return {}, images.stored(settings), {"image_shape": (height, channels)}


def class_counts(dataset: RawDataset) -> list[int]:
    """Return the train samples of each class; [] for targets that are no classes."""
    names = dataset.task.output_names if dataset.task.form == "class" else ()
    return np.bincount(dataset.targets[TRAIN], minlength=len(names)).tolist() if names else []


def described_targets(dataset: RawDataset, assigned: NDArray[np.str_]) -> list[str]:
    """Return lines about the targets of train, and about the classes that are absent in a split as `assigned`, those of the samples of train, draws it."""
    names, targets = dataset.task.output_names, dataset.targets[TRAIN]
    if counts := class_counts(dataset):
        return [f"{len(names)} classes: {shares(names, counts, sum(counts))}", *absent_classes(dataset, assigned)]
    if dataset.task.form != "labels":
        numbers = [f"numbers from {each.min():g} to {each.max():g}, {each.mean():g} on average" for each in targets.T]
        return [f"{shown(name, 40)}: {described}" for name, described in zip(names, numbers, strict=True)]
    marks = targets.sum(axis=0, dtype=np.int64).tolist()
    average, none = sum(marks) / len(targets), int((targets.sum(axis=1) == 0).sum())
    return [f"{len(names)} labels, {average:.2f} a sample on average, and {none} samples without: {shares(names, marks, len(targets))}"]


def shares(names: Sequence[str], counts: Sequence[int], total: int) -> str:
    """Return the names with their counts, and their shares in `total`, the most frequent first."""
    ordered = sorted(zip(counts, names, strict=True), reverse=True)
    return listed([f"{shown(name, 40)} {count} ({count / max(1, total):.1%})" for count, name in ordered], MOST_CLASSES)


def absent_classes(dataset: RawDataset, assigned: NDArray[np.str_]) -> list[str]:
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
    settings = params_of(values).source
    with looking() as seen:
        found = SOURCES.module("text").read(settings.root, values.get("pattern", "*"), encoding_of(values))
        documents = [document for document in found if values.get("divide") != "splits" or not is_document(document.name)]
        texts = ["".join(document.read()) for document in documents]
    num_characters = round(sum(map(len, texts)) / (seen.share() or 1))
    if not num_characters:
        raise Refusal(f"data={settings.root}: has no text: add files, or change source.pattern")
    divided = ", whose names mean their splits (source.divide)" * (values.get("divide") == "splits")
    size = f"{'about ' * (seen.share() < 1)}{num_characters} characters in {counted(len(documents), 'file')}{divided}"
    sizes, described = vocabulary_values(values, texts)
    files = frozenset(settings.root / document.name if settings.root.is_dir() else settings.root for document in documents)
    lines = (f"{settings.root}: {READERS['text'].title}: {size}", *described)
    return Finding({**values, **sizes}, lines, files, num_characters, frozenset())


def used_files(settings: SourceSettings, dataset: RawDataset) -> frozenset[Path]:
    """Return the files that a source reads: its tables, images or texts."""
    root = settings.root
    found = [path for paths in getattr(settings, "tables", dict)().values() for path in paths]
    if settings.name == "text_classification" and not found:
        found = [path for of_split in find_line_files(root).values() for path in of_split.values()]
    keys = dataset.sample_keys().values() if dataset.sample_keys else []
    names = {name for several in keys for name in (several.names if isinstance(several, Keys) else several)}
    return frozenset([*found, *(root / name for name in names)])


def equal_samples(dataset: RawDataset) -> list[str]:
    """Return lines about equal samples of train, and about those of them that have different labels."""
    if not dataset.drawing_keys:
        return []
    ranks, targets = ranks_of(dataset.drawing_keys(), 0), dataset.targets[TRAIN]
    labels = np.unique(targets.reshape(len(targets), -1), axis=0, return_inverse=True)[1] if targets.size else np.zeros(len(targets), int)
    different, groups, sizes = np.unique(ranks, return_inverse=True, return_counts=True)
    num_labels = np.bincount(np.unique(np.stack([groups, labels.reshape(-1)]), axis=1)[0])
    repeated, contrary = len(ranks) - len(different), int(sizes[num_labels > 1].sum())
    lines = [f"{repeated} samples of train equal an earlier one" if repeated else "no two samples of train are equal"]
    are_classes = 2 * contrary > len(ranks) and dataset.task.form == "class"
    several = "; if samples have several labels, join their rows, as docs/multi-label.md shows" if are_classes else ""
    return lines + [f"warning: {contrary} samples of train equal another one that has another label{several}"] * bool(contrary)


def params_of(values: Mapping[str, Any]) -> PrepareParams:
    """Return the settings of the source with its recommended values, and `values` instead of some. Raises Refusal if one is invalid."""
    kind = SOURCES.settings(str(values["name"]))
    source = {"name": values["name"], **kind.recommended(name=values["name"], task=kind.TASK), **values}
    params, problems = validate({"source": source}, PrepareParams)
    if params is None:
        raise Refusal.of(problems[:1])
    return params
