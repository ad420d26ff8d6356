"""`set data=PATH`: looks at data of the user's own, and finds the section `source` that reads them, and facts about them for a recommendation."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import create_model

from pipeline.core.params import validate
from pipeline.core.raw_dataset import SPLITS, TEST, TRAIN, RawDataset
from pipeline.core.refusal import Problem, Refusal, counted, listed
from pipeline.core.registry import SOURCES
from pipeline.core.section import Section, suggestion
from pipeline.core.spec import Inputs, Targets
from pipeline.core.untrusted import shown
from pipeline.prepare.columns import Unclear
from pipeline.prepare.inputs.tokens import measured
from pipeline.prepare.params import PrepareParams, SourceSettings
from pipeline.prepare.reading import archives, streams, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, split_in
from pipeline.prepare.reading.delimited import WrongLines
from pipeline.prepare.reading.labelled_tables import Keys
from pipeline.prepare.reading.line_files import NO_LINES, find_line_files
from pipeline.prepare.reading.streams import looking
from pipeline.prepare.reading.tables import UnusableRows, is_document, visible_files
from pipeline.prepare.split import ranks_of
from pipeline.prepare.stage import survey
from pipeline.tools.params import columns, images
from pipeline.tools.params.cell_values import VALUES, pair_values, quoted, tokenizer_values, vocabulary_values
from pipeline.tools.params.readings import READERS
from pipeline.tools.params.table import Given, Question, Table, assignment, encoding_of, kind_of

MOST_COMPARED = 10_000
"""Up to so many images are read to find equal ones. `prepare` counts them in any case."""
LISTED_BYTES = 2**16
"""How much of a file of text is looked at for names of images."""
MOST_CLASSES = 6
PUBLISHED = {"train-images-idx3-ubyte": "mnist", "test_batch.bin": "cifar"}
"""The name of a file that the source of a published data set reads."""
PUBLISHED_IN = {"", "raw", "cifar-10-batches-bin"}
"""The folders in which it finds them, below `root`."""


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


def look(root: Path, given: Given) -> Finding:
    """Look at the data at `root`. `given` has the keys of the section `source` that the user has set.

    Each source that seems to fit reads the data. The one is taken that leaves tables and images unused only if every other leaves them, too;
    those without labels do not count. Raises Refusal if there is nothing, if no source can read the data, or if several can, or only one that
    leaves something unused, and `given` does not choose it by naming the source, a table or a column. If none can, the refusal is that of the
    source that reads the most kinds of files that are there.
    """
    if not root.exists():
        raise Refusal(f"data={root}: there is no such file or folder: correct the path; a file in an archive must be unpacked")
    if "name" in given and given["name"] not in READERS:
        raise Refusal(f"source={shown(given['name'], 60)}: does not read data of your own: {suggestion(given['name'], tuple(READERS))}")
    try:
        streams.known_encoding(encoding_of(given))
    except ValueError as error:
        raise Refusal(f"source.encoding={shown(given['encoding'], 60)}: {error}") from None
    names = visible_files(root)
    files = [name for name in names if not is_document(name)]
    refuse_published(root, files, given)
    if root.is_dir() and len(files) == 1 and kind_of(files[0]) == "text":
        return look(root / files[0], given)
    found, refusals = attempts(root, given)
    if not found:
        raise nearest(root, given, refusals, set(map(kind_of, files)))
    unused = {name: unused_files(root, names, finding) for name, finding in found.items()}
    possible = [name for name, (labelled, *_) in unused.items() if not any(set(other) < set(labelled) for other, *_ in unused.values())]
    if len(possible) > 1:
        ways = " or ".join(f"source={name} ({READERS[name].title}{leaving(unused[name][0])})" for name in possible)
        raise Refusal(f"data={root}: can be read in {len(possible)} ways: add {ways}")
    [name] = possible
    if name == "text" and isinstance(refusals.get("text_classification"), (Question, WrongLines)):
        raise Refusal(f"{refusals['text_classification']}; if these are texts without labels, add source=text")
    labelled, *_ = unused[name]
    if labelled and not {"name", "table", "image_column", "label_column", "text_column", "target_column"} & set(given):
        if question := next((error for error in refusals.values() if isinstance(error, Question)), None):
            raise Refusal(f"{question}; to read {READERS[name].title} instead{leaving(labelled)}, add source={name}")
        remedy = f"to leave this out, add source={name}" + (f"; else: {refusals['image_table']}" if "image_table" in refusals else "")
        raise Refusal(f"data={root}: can be read as {READERS[name].title}{leaving(labelled)}: {remedy}")
    return replace(found[name], lines=(*found[name].lines, *left_out(name, unused[name], refusals)))


def left_out(name: str, unused: tuple[Sequence[str], Sequence[str], Sequence[str]], refusals: Mapping[str, Refusal]) -> list[str]:
    """Return lines about the files that the source `name` does not use, and how to read labelled texts as rows."""
    labelled, unlabelled, others = unused
    sentences = {"not used": [*labelled, *others], "not used, because without labels": unlabelled}
    lines = [f"{sentence}: {listed(summary(several), MOST_CLASSES)}" for sentence, several in sentences.items() if several]
    beside = refusals.get("table")
    if name == "text_classification" and isinstance(beside, Question):
        lines += [f"to read {READERS['table'].title} instead, add source=table: {question}" for question in beside.questions]
    return lines


def refuse_published(root: Path, files: Sequence[str], given: Given) -> None:
    """Raise Refusal if a source of published data reads the files in `root`, or if they are all of Weka, and `given` names no source."""
    if "name" in given:
        return
    folder = root if root.is_dir() else root.parent  # of a single file
    paths = (PurePath(streams.unpacked_name(name)) for name in files if not root.name.lower().endswith(archives.SUFFIXES))
    if published := [PUBLISHED[path.name] for path in paths if path.name in PUBLISHED and path.parent.name in PUBLISHED_IN]:
        command = shlex.join(("python", "-m", "pipeline", "set", f"source={published[0]}", f"source.root={folder}"))
        others = "; for Fashion-MNIST and Kuzushiji-MNIST, source.variant is fashion and kmnist" * (published[0] == "mnist")
        raise Refusal(f"data={root}: has the files of a published data set: run `{command}`{others}")
    if files and all(name.lower().endswith(".arff") for name in files):
        raise Refusal(f"data={root}: is of Weka (ARFF): write its rows into a .csv with the names of the columns in the first line")


def attempts(root: Path, given: Given) -> tuple[dict[str, Finding], dict[str, Refusal]]:
    """Read the data by each source that has the keys in `given`. Return what was found, and the refusals, by the name of the source."""
    having_keys = [name for name in READERS if set(given) <= set(SOURCES.settings(name).model_fields)]
    found, refusals = dict[str, Finding](), dict[str, Refusal]()
    for name in [given["name"]] if "name" in given else having_keys or READERS:
        try:
            if (values := READERS[name].values(root, given)) is not None:
                found[name] = describe({"name": name, "root": root, **values, **given}, given)
        except Unclear as error:
            refusals[name] = Question(root, *(problem.unplaced for problem in error.problems))
        except Refusal as error:
            refusals[name] = error
    return found, refusals


def nearest(root: Path, given: Given, refusals: Mapping[str, Refusal], present: set[str]) -> Refusal:
    """Return the refusal of the source that a user's answer would let read the data, or that reads the most kinds of the files in `present`.

    That of a file in another encoding goes before all others.
    """
    if not refusals:
        named = "name" in given
        known = f"no {READERS[given['name']].title}" if named else f"none of {', '.join(reader.title for reader in READERS.values())}"
        may_be_table = present == {"other"} and root.is_file() and not root.name.lower().endswith((*archives.SUFFIXES, ".arff"))
        renamed = f"if it is a table, rename it to {root.with_suffix('.csv')}; else " if may_be_table else ""
        way = f"leave out source={given['name']}" if named else "set the section `source` by hand"
        packed = [name for name in visible_files(root) if root.is_dir() and name.lower().endswith(archives.SUFFIXES)]
        renamed += f"to read an archive, write its path, {shlex.quote(f'data={root / packed[0]}')}; else " if packed else ""
        return Refusal(f"data={root}: looks like {known}: {renamed}arrange it as docs/data.md shows, or {way}")
    if undecoded := next((error for error in refusals.values() if isinstance(error, streams.NotDecoded)), None):
        return undecoded
    if isinstance(faulty := refusals.get("image_table"), UnusableRows):  # the table lists images for certain
        return faulty
    error = refusals[max(refusals, key=lambda name: (isinstance(refusals[name], Question), len(READERS[name].kinds & present)))]
    if isinstance(error, Question) and isinstance(pairs := refusals.get("text_pairs"), Question) and pairs.questions != error.questions:
        first, second = (pairs, error) if pairs.path == root and root.is_dir() else (error, pairs)  # parallel files
        return Refusal(f"{first}; or {'; and '.join(second.questions)}")
    if "text" in present <= {"text", "other"} and "name" not in given and "text" not in refusals:
        suffixes = Counter(
            PurePath(name).suffix for name in visible_files(root) if not is_document(name) and not name.lower().endswith(NO_LINES)
        )
        pattern = f" {assignment('pattern', f'*{suffixes.most_common(1)[0][0]}')}" * ("other" in present)
        return Refusal(f"{error}; if these are texts without labels, add source=text{pattern}")
    return error


def unused_files(root: Path, names: Sequence[str], finding: Finding) -> tuple[list[str], list[str], list[str]]:
    """Return the files that a source does not read, of `names`, those in `root`.

    First those that may have labels: tables, images, lists of images, and arrays outside of folders. Then those that have none: images whose folder is called like a
    test, and tables of which no column looks like labels. At last all others in a folder of labelled texts or of pairs.
    """
    source, labelled, unlabelled, others = finding.source["name"], list[str](), list[str](), list[str]()
    for name in names if root.is_dir() or root not in finding.files else ():
        if root / name in finding.files:
            continue
        if kind_of(name) in ("image", "table"):
            without_labels = others if source == "text_pairs" else unlabelled
            (without_labels if is_unlabelled(root, name, encoding_of(finding.source)) else labelled).append(name)
        elif (kind_of(name) == "text" and lists_images(root / name)) or (
            kind_of(name) == "array" and "/" not in name and source != "arrays"
        ):
            labelled.append(name)
        elif (
            source in ("text_classification", "text_pairs")
            and root.is_dir()
            and kind_of(name) in ("text", "other")
            and not is_document(name)
        ):
            others.append(name)
    return labelled, unlabelled, others


def leaving(unused: Sequence[str]) -> str:
    return f", which leaves unused: {listed(summary(unused), MOST_CLASSES)}" if unused else ""


def summary(names: Sequence[str]) -> list[str]:
    """Return the names of tables and of other files outside of folders, and for each folder the number of its images or other files."""
    alone = dict.fromkeys(name for name in names if kind_of(name) == "table" or ("/" not in name and kind_of(name) != "image"))
    folders = Counter((name.rpartition("/")[0], "image" if kind_of(name) == "image" else "file") for name in names if name not in alone)
    return [*alone, *(f"{shown(folder)}/ ({counted(count, noun)})" for (folder, noun), count in folders.items())]


def lists_images(path: Path) -> bool:
    """Return True if most of the first lines of a file of text contain the name of an image file, in whatever encoding."""
    try:
        with path.open("rb") as file:
            first = [line for line in file.read(LISTED_BYTES).decode("latin-1").lower().splitlines() if line.strip()]
    except OSError:  # in an archive, or not readable
        return False
    return 2 * sum(any(suffix in line for suffix in IMAGE_SUFFIXES) for line in first) > len(first)


def is_unlabelled(root: Path, name: str, encoding: str) -> bool:
    if kind_of(name) == "image":
        return any(split_in(part) == TEST for part in name.split("/")[:-1])
    try:
        table = Table.read(root / name, encoding=encoding) if root.is_dir() else None
        return table is not None and not (columns.label_columns(table) or columns.list_columns(table))
    except Refusal:
        return tables.suffix_of(Path(name)) == ".json"  # which is often no table


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


def wrong_values(given: Given) -> list[Problem]:
    """Return the problems of the values in `given` that have the wrong type in each source with their key, or in that which `given` names."""
    name, found = given.get("name"), list[Problem]()
    if "name" in given and not isinstance(name, str):
        return [Problem("should be the name of a source", "write source=NAME, and source.KEY=VALUE for each of its keys", ("name",))]
    for key, value in given.items():
        fields = [SOURCES.settings(each).model_fields.get(key) for each in ([name] if name in READERS else READERS)]
        kinds: Iterable[Any] = (
            create_model("Value", __base__=Section, **{key: (field.annotation, field)})  # type: ignore[call-overload]  # keys from the data
            for field in fields
            if field and key != "name"
        )
        problems = (validate({key: value}, kind)[1] for kind in kinds)
        first = next(problems, [])
        found += first if first and all(problems) else []
    return found
