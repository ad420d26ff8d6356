"""`set data=PATH`: looks at data of the user's own, and finds the section `source` that reads them, and facts about them for a recommendation."""

import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, NoReturn

from pydantic import create_model

from pipeline.core.params import validate
from pipeline.core.raw_dataset import TEST, TRAIN
from pipeline.core.refusal import Problem, Refusal, counted, listed
from pipeline.core.registry import SOURCES
from pipeline.core.section import Section, suggestion
from pipeline.core.untrusted import shown
from pipeline.prepare.columns import Unclear
from pipeline.prepare.reading import archives, delimited, streams, table_formats, table_sets
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, SPLIT_NAMES, split_in, words
from pipeline.prepare.reading.delimited import WrongLines
from pipeline.prepare.reading.table_formats import is_document
from pipeline.prepare.reading.table_sets import visible_files
from pipeline.prepare.reading.tables import UnusableRows
from pipeline.tools.params import columns
from pipeline.tools.params.findings import MOST_CLASSES, Finding, describe
from pipeline.tools.params.labelled_texts import as_texts
from pipeline.tools.params.readings import READERS, asked_of_lines, asked_of_pairs
from pipeline.tools.params.table import Given, Question, Table, encoding_of, is_submission, kind_of

LISTED_BYTES = 2**16
"""How much of a file of text is looked at for names of images."""
LIBSVM = re.compile(rb"\S+(\s+\d+:\S+)+")
"""The first line of a file in the format of libsvm: a label, and numbers with their indices."""
PUBLISHED = {"train-images-idx3-ubyte": "mnist", "test_batch.bin": "cifar"}
"""The name of a file that the source of a published data set reads."""
PUBLISHED_IN = {"", "raw", "cifar-10-batches-bin"}
"""The folders in which it finds them, below `root`."""
UNREAD = {
    ".arff": "write the rows of {} into a .csv",
    ".h5": "save the arrays of {} as .npy",
    ".npz": "save the arrays of {} as .npy, or those of all splits in one .npz, and write its path",
}
"""No source reads files with these suffixes in a folder; a message says what to do with them."""


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
    of_rows = {str(path) for path in table_sets.tables_in(root)}  # by their names or contents
    found, refusals = attempts(root, given)
    if not found:
        raise nearest(root, given, refusals, {name: "table" if name in of_rows else kind_of(name) for name in files})
    unused = {name: unused_files(root, names, finding) for name, finding in found.items()}
    possible = [name for name, (labelled, *_) in unused.items() if not any(set(other) < set(labelled) for other, *_ in unused.values())]
    [name] = possible if len(possible) == 1 else refuse_several(root, given, {each: unused[each][0] for each in possible})
    if name == "text":
        refuse_corpus(root, given, refusals)
    labelled, *_ = unused[name]
    if labelled and not {"name", "table", "image_column", "label_column", "text_column", "target_column"} & set(given):
        if question := next((error for error in refusals.values() if isinstance(error, Question)), None):
            raise Refusal(f"{question}; to read {READERS[name].title} instead{leaving(labelled)}, add source={name}")
        remedy = f"to leave this out, add source={name}" + (f"; else: {refusals['image_table']}" if "image_table" in refusals else "")
        raise Refusal(f"data={root}: can be read as {READERS[name].title}{leaving(labelled)}: {remedy}")
    return replace(found[name], lines=(*found[name].lines, *left_out(found[name], unused[name], refusals), *beside(root)))


def beside(root: Path) -> list[str]:
    """Return a line about files beside the file `root` that seem to be its other splits by their names, such as `x-dev` beside `x-train-high`."""

    def kept(name: str) -> set[str]:
        return {word for word in words(name) if word not in SPLIT_NAMES}

    if not root.is_file() or split_in(root.name) not in (TRAIN, None):
        return []
    files = [
        path.name
        for path in sorted(root.parent.iterdir())
        if split_in(path.name) not in (TRAIN, None) and kept(path.name) <= kept(root.name)
    ]
    folder = shlex.quote(f"data={root.parent}")
    return [f"beside it, not read: {listed(files, MOST_CLASSES)}: {folder} reads its folder"] if files else []


def refuse_several(root: Path, given: Given, possible: Mapping[str, Sequence[str]]) -> NoReturn:
    """Raise Refusal: the sources `possible` can read the data, each with the files that it leaves unused."""
    ways = " or ".join(f"source={name} ({READERS[name].title}{leaving(unused)})" for name, unused in possible.items())
    pairs = asked_of_lines(root, given)
    either = f"; or, if their lines belong together: {'; and '.join(pairs.questions)}" if pairs else ""
    raise Refusal(f"data={root}: can be read in {len(possible)} ways: add {ways}{either}")


def refuse_corpus(root: Path, given: Given, refusals: Mapping[str, Refusal]) -> None:
    """Raise Refusal if texts that can be read as a corpus may also have labels, or lines that belong together."""
    beside = refusals.get("text_classification")
    if isinstance(beside, (Question, WrongLines)):
        raise Refusal(f"{beside}; if these are texts without labels, add source=text")
    if "name" not in given and (pairs := asked_of_lines(root, given)):
        raise Refusal(
            f"data={root}: its files have equally many lines: {'; and '.join(pairs.questions)}; if they are texts without labels, add source=text"
        )


def left_out(finding: Finding, unused: tuple[Sequence[str], Sequence[str], Sequence[str]], refusals: Mapping[str, Refusal]) -> list[str]:
    """Return lines about the files that a source does not use, those first that are called like what it reads, and how to read labelled texts as rows."""
    labelled, unlabelled, others = unused
    read = [path.name for path in finding.files]

    def likeness(name: str) -> int:
        return max((len(posixpath.commonprefix((posixpath.basename(name), each))) for each in read), default=0)

    rest = sorted([*labelled, *others], key=likeness, reverse=True)
    sentences = {"not used": rest, "not used, because without labels": unlabelled}
    lines = [f"{sentence}: {listed(summary(several), MOST_CLASSES)}" for sentence, several in sentences.items() if several]
    table = refusals.get("table")
    if finding.source["name"] == "text_classification" and isinstance(table, Question):
        instead = f"to read {READERS['table'].title} instead, add source=table: "
        lines += [question if "source=table" in question else instead + question for question in table.questions]
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
    if root.is_file() and kind_of(root.name) in ("text", "other") and begins_as_libsvm(root):
        raise Refusal(
            f"data={root}: has rows of libsvm, INDEX:VALUE, which no source reads: write a .csv with a column for each index; if it is a text, add source=text"
        )
    if files and all(name.lower().endswith(".arff") for name in files):
        raise Refusal(f"data={root}: is of Weka (ARFF): write its rows into a .csv with the names of the columns in the first line")


def begins_as_libsvm(path: Path) -> bool:
    """Return True if the first lines of a file that is not packed have a label and then only pairs such as `3:0.5`."""
    with path.open("rb") as file:
        lines = [line.strip() for line in file.read(LISTED_BYTES).split(b"\n")[:-1] if line.strip()]
    return len(lines) > 1 and all(map(LIBSVM.fullmatch, lines))


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


def nearest(root: Path, given: Given, refusals: Mapping[str, Refusal], kinds: Mapping[str, str]) -> Refusal:
    """Return the refusal of the source that a user's answer would let read the data, or that reads the most kinds of the files, which `kinds` has by name.

    That of a file in another encoding goes before all others.
    """
    if not refusals:
        return unknown(root, given)
    present, by_name = {*kinds.values()}, {*map(kind_of, kinds)}
    certain: list[Refusal] = [error for error in refusals.values() if isinstance(error, streams.NotDecoded)]
    certain += [error for error in (refusals.get("image_table"),) if isinstance(error, UnusableRows)]  # the table lists images for certain
    if certain:
        return certain[0]
    fitting = {name: len(READERS[name].kinds & present) - ("image" in READERS[name].kinds - present) / 2 for name in refusals}
    named = max(refusals, key=lambda name: (isinstance(refusals[name], Question), fitting[name]))
    error = refusals[named]
    pairs = refusals.get("text_pairs")
    if pairs is None and isinstance(error, Question) and not {"name", "task", "label_column"} & set(given):
        pairs = asked_of_pairs(root, given)
    if isinstance(error, Question) and isinstance(pairs, Question) and pairs.questions != error.questions:
        first, second = (pairs, error) if pairs.path == root and root.is_dir() else (error, pairs)  # parallel files
        return Refusal(f"{first}; or {'; and '.join(second.questions)}")
    if "image" in present and "image_table" in refusals and not READERS[named].kinds & {"image"}:
        return Refusal(f"{error}; its images are then unused: {refusals['image_table']}")
    if "text" in by_name <= {"text", "other"} and "name" not in given and "text" not in refusals:
        error = Refusal(f"{error}; {as_texts(root)}")
    return Refusal(f"{error}; {packed}") if (packed := packed_in(root)) else error


def unknown(root: Path, given: Given) -> Refusal:
    """Return the refusal of data that no source seems to read."""
    if "name" in given:
        known, way_out = f"no {READERS[given['name']].title}", f"leave out source={given['name']}"
    else:
        known, way_out = f"none of {', '.join(reader.title for reader in READERS.values())}", "set the section `source` by hand"
    names = [name for name in visible_files(root) if not is_document(name)]
    folder = posixpath.commonpath(map(posixpath.dirname, names)) if names and root.is_dir() else ""
    remedy = f"if {shown(folder)} is the dataset, write {shlex.quote(f'data={root / folder}')}; else " if folder else ""
    splits = {split for name in names if (split := split_in(name))}
    remedy += "" if TRAIN in splits or not splits else f"it has a split {' and '.join(sorted(splits))}, but none for train: add one; else "
    for suffix, way in UNREAD.items():
        if unread := next((name for name in names if name.lower().endswith(suffix)), None):
            remedy += f"{way.format(shown(unread))}; else "
    if "name" not in given and any(kind_of(name) == "text" for name in names):
        remedy += f"{as_texts(root)}; else "
    if root.is_file() and kind_of(root.name) == "other" and delimited.num_fields(streams.look(root, encoding_of(given))[0].text) > 1:
        remedy += f"if it is a table, rename it to {root.with_suffix('.csv')}; else "
    if packed := packed_in(root):
        remedy += f"{packed}; else "
    return Refusal(f"data={root}: looks like {known}: {remedy}arrange it as docs/data.md shows, or {way_out}")


def packed_in(root: Path) -> str:
    """Return how to read an archive in the folder `root`, or "" if there is none."""
    names = visible_files(root) if root.is_dir() else []
    packed = [shlex.quote(f"data={root / name}") for name in names if name.lower().endswith(archives.SUFFIXES)]
    return f"to read an archive, write its path, {listed(packed, MOST_CLASSES, separator=' or ')}" if packed else ""


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
            (without_labels if is_unlabelled(root, name, finding.source) else labelled).append(name)
        elif (kind_of(name) == "text" and lists_images(root / name)) or (
            kind_of(name) == "array" and "/" not in name and source != "arrays"
        ):
            labelled.append(name)
        elif (
            source in ("text_classification", "text_pairs", "table")
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


def is_unlabelled(root: Path, name: str, source: Given) -> bool:
    """Return True for images of test, and for a table without the column of the labels in `source` and without another one that looks like labels."""
    if kind_of(name) == "image":
        return any(split_in(part) == TEST for part in name.split("/")[:-1])
    try:
        if not root.is_dir():
            return False
        table = Table.read(root / name, encoding=encoding_of(source))
        wanted: Any = source.get("label_column")
        has_labels = any(len({*map(str, table.columns.get(label, ()))}) > 1 for label in (wanted if isinstance(wanted, list) else [wanted]))
        return is_submission(name) or not (has_labels or columns.label_columns(table) or columns.list_columns(table))
    except Refusal:
        return table_formats.named_suffix(Path(name)) == ".json"  # which is often no table


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
