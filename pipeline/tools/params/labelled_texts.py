"""The reading of labelled texts: in a table, with a label in each line, line by line beside their labels, or in files or folders of each class."""

import posixpath
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.section import suggestion
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import delimited, line_files, streams, table_formats
from pipeline.prepare.reading.class_folders import ClassFolders, split_in
from pipeline.prepare.reading.delimited import WrongLines
from pipeline.prepare.reading.line_files import are_languages, find_line_files
from pipeline.prepare.reading.table_sets import SeveralSets, find_tables, visible_files
from pipeline.tools.params import cell_values, columns
from pipeline.tools.params.images import class_layout
from pipeline.tools.params.table import (
    MOST_FILES,
    MOST_LISTED,
    MOST_TABLES,
    TEXT_SUFFIXES,
    Given,
    Name,
    Option,
    Question,
    Table,
    Values,
    assignment,
    attempted,
    encoding_of,
    kind_of,
    pattern_of,
    train_tables,
    ways,
)

COLUMNS_OF_FILES: dict[str, Any] = {"text_column": None, "label_column": None, "split_column": None}
MOST_BLANK = 0.05
"""The share of blank lines in files whose lines are samples. Prose and verse have more."""
MOST_OF_NAME, FEWEST_BESIDE_NAMES = 5, 5
"""Texts of so few words on average are names, such as those of passengers or cars, if so many columns of numbers or categories are beside them."""


def as_labelled_texts(root: Path, given: Given) -> Values | None:
    chosen, names = given.get("table"), visible_files(root)
    if chosen is not None and not any(fnmatch(name, chosen) for name in names):
        raise Refusal(f"source.table={shown(chosen, 60)}: {root} has no such file: {suggestion(chosen, tuple(names))}")
    options, are_of_train = train_tables(root, given)
    try:
        values = attempted(root, options, given, text_values, "have labelled texts")
    except Question:
        raise
    except Refusal:
        read = {path for _, paths in options for path in paths}
        others = (name for name in names if kind_of(name) in ("text", "other") and not table_formats.is_document(name))
        if are_of_train or all(root / name in read for name in others):
            raise
        values = None  # the tables may describe texts in files
    if values is not None or are_of_train:
        return values
    if values := of_line_files(root, given) or of_labelled_lines(root, given) or of_class_files(root, given):
        return values
    if "name" not in given:
        refuse_listed_texts(root, options, given)
        refuse_loose_texts(root)
    return of_class_folders(root, given)


def of_class_folders(root: Path, given: Given) -> Values | None:
    """Return the values for a folder of texts for each class, or None if most files there are no texts. Raises Refusal if there is only one."""
    layout = class_layout(root, is_text)
    if layout and "name" not in given:
        refuse_equal_names(root, layout)
    if not layout or 2 * sum(is_text(sample.name) for sample in layout.samples) <= len(layout.samples):
        return None
    folder = posixpath.commonpath([posixpath.dirname(sample.name) for sample in layout.samples])
    if len(layout.classes) == 1 and folder and root.is_dir():
        remedy = f"if that folder is the dataset, write {shlex.quote(f'data={root / folder}')}; else add samples of a second class"
        raise Refusal(f"data={root}: has texts in one folder only, {shown(folder)}: {remedy}")
    others = [sample.name for sample in layout.samples if not is_text(sample.name)]
    if others and "name" not in given:
        mixed = f"{len(others)} of the {len(layout.samples)} files in its folders are no texts by their names, such as {shown(others[0])}"
        of_classes = "if they are texts of the classes that the folders name, add source=text_classification"
        raise Question(root, f"{mixed}: move them away, or, {of_classes}; {as_texts(root)}")
    return COLUMNS_OF_FILES


def as_texts(root: Path) -> str:
    """Return how to read the files in `root` as texts without labels: those with the most frequent suffix, if there are several."""
    names = [
        name for name in visible_files(root) if not table_formats.is_document(name) and not name.lower().endswith(table_formats.NO_LINES)
    ]
    counts = Counter(PurePosixPath(name).suffix for name in names)
    suffix = max(counts, key=lambda each: counts[each] * (1 + (each.lower() in TEXT_SUFFIXES)), default="")
    return "if these are texts without labels, add source=text" + f" {assignment('pattern', f'*{suffix}')}" * (len(counts) > 1)


def is_text(name: str) -> bool:
    """Return True if a file is one of text by its name, or has a name without a suffix, as those of 20 Newsgroups."""
    return kind_of(name) == "text" or not PurePosixPath(name).suffix


def refuse_equal_names(root: Path, layout: ClassFolders) -> None:
    """Raise Question if the class folders have the same few files, called by words, such as a translation in each."""
    if layout.targets.keys() != {TRAIN} or not root.is_dir():
        return
    names = defaultdict[str, set[str]](set)
    for path in (PurePosixPath(sample.name) for sample in layout.samples):
        names[str(path.parent)].add(path.name)
    first, *others = names.values()
    if others and 1 < len(first) <= MOST_LISTED and all(each == first for each in others) and not any(map(str.isdigit, "".join(first))):
        same = f"each of {len(names)} folders has the files {shown(listed(sorted(first), MOST_LISTED))}"
        parallel = f"parallel files are read from one folder, such as {shlex.quote(f'data={root / next(iter(names))}')}"
        raise Question(root, f"{same}: {parallel}; if the folders are classes, add source=text_classification")


def refuse_listed_texts(root: Path, options: Sequence[Option], given: Given) -> None:
    """Raise Question if a table names files of text, whose labels it may have."""
    stems = {PurePosixPath(name).stem for name in visible_files(root) if is_text(name)}
    for _, (path, *_) in options[:MOST_TABLES] if len(stems) > 1 else ():
        named = list[Name]()
        with suppress(Refusal):  # which other readings say, too
            named = Table.read(path, encoding=encoding_of(given), given=given).where(lambda values: are_in([*map(str, values)], stems))
        if named:
            lists = f"{shown(path.relative_to(root))} names files of text in its column {shown(named[0], 60)}, which no source reads"
            are_parts = any(split_in(name) for name in visible_files(root) if is_text(name))  # samples of all, such as `small_train`
            otherwise = "" if are_parts else "; if the folders are classes, add source=text_classification"
            raise Question(root, f"{lists}: write their texts into a column of it{otherwise}")


def are_in(values: Sequence[str], known: Collection[str]) -> bool:
    """Return True if most values are known, and most of them different."""
    num_known = sum(value in known or PurePosixPath(value).stem in known for value in values)
    return 2 * num_known > len(values) < 2 * len({*values})


def refuse_loose_texts(root: Path) -> None:
    """Raise Question if `root` has files that may have the texts of a class each, and folders that may be classes."""
    names = visible_files(root)
    classes = line_files.class_files([name for name in names if "/" not in name and kind_of(name) == "text"], None)
    if classes and not any(map(split_in, classes)) and any("/" in name and is_text(name) for name in names):
        patterns = ways("table", dict.fromkeys(f"*{PurePosixPath(name).suffix}" for name in classes))
        of_files = f"if each file has the texts of one class, line by line, add {patterns}"
        beside = f"has files ({listed(list(classes), MOST_LISTED)}) beside folders"
        raise Question(root, f"{beside}: {of_files}; if the folders are the classes, add source=text_classification")


def of_labelled_lines(root: Path, given: Given) -> Values | None:
    """Return the values for files of text with a label in each line, or None if the lines of train have none.

    Raises Question if several files have such lines, and their names have no word for a split.
    """
    of_splits = dict[str, list[Path]]()
    try:
        of_splits = find_tables(root, given.get("table"), of_lines=True)
    except SeveralSets as error:
        if any(labelled_lines(paths, encoding_of(given)) for paths in error.sets):
            raise
    if not of_splits and root.is_dir():
        alone = [root / name for name in visible_files(root) if "/" not in name]
        some = cell_values.sampled(alone, MOST_FILES)
        paths = [path for path in some if has_labels(path, encoding_of(given))]
        if paths and len(some) < len(alone):
            paths = [path for path in alone if has_labels(path, encoding_of(given))]
        if len(paths) > 1:
            choices = filter(None, (pattern_of(root, paths), *(escape(path.name) for path in paths)))
            raise Question(root, f"{len(paths)} files have a label in each line: add {ways('table', choices)}")
        place = paths[0] if paths else root
    else:
        place, paths = root, of_splits.get(TRAIN, [])
        paths = paths if paths and labelled_lines(paths, encoding_of(given)) else []
        refuse_several_sets(root, given, paths)
    if paths and "name" not in given:
        refuse_numbers(paths[0], encoding_of(given))
    return attempted(root, [({"root": place}, paths)], given, text_values, "have labelled texts") if paths else None


def refuse_numbers(path: Path, encoding: str) -> None:
    """Raise Refusal if the lines of a file have whole numbers, which may be a table, or labels and texts of numbers."""
    beginning = streams.look(path, encoding)[0].text
    if delimited.holds_numbers(beginning) and not beginning.startswith(delimited.SEVERAL):
        rows = f"has rows of whole numbers: if it is a table, call it {shown(path.with_suffix('.csv').name)}"
        raise Refusal(f"data={path}: {rows}; if these are labels and texts, add source=text_classification")


def refuse_several_sets(root: Path, given: Given, labelled: Sequence[Path]) -> None:
    """Raise Question if `root` has several sets of files with equal stems, such as `reviews.pos` and `reviews.neg`, or one and files `labelled`."""
    names = [name for name in visible_files(root) if "/" not in name and kind_of(name) == "other" and not split_in(name)]
    sets = [f"{stem}.*" for stem, count in Counter(PurePosixPath(name).stem for name in names).items() if count > 1]
    choices = [*(path.relative_to(root) for path in labelled[:1]), *sets]
    if sets and len(choices) > 1 and given.get("table") is None:
        beside = f"{shown(choices[0])} with a label in each line, and " if labelled else ""
        suffixes = f"{beside}{counted(len(sets), 'set')} of files whose suffixes may be classes"
        raise Question(root, f"has {suffixes}: add {ways('table', choices)}")


def has_labels(path: Path, encoding: str) -> bool:
    """Return True if the lines of a file have labels beside other fields; False also for a file that is no text, or has faulty lines."""
    with suppress(streams.NotDecoded, WrongLines):
        return labelled_lines([path], encoding)
    return False


def labelled_lines(paths: Sequence[Path], encoding: str) -> bool:
    """Return True if the lines of files that are no tables have labels beside other fields. Raises NotDecoded if they are not in `encoding`."""
    if any(
        table_formats.is_document(path) or kind_of(path.name) not in ("text", "other") or table_formats.suffix_of(path) for path in paths
    ):
        return False
    try:
        table = Table.read(*paths, encoding=encoding)
    except Question:  # about its first line
        return True
    except (streams.NotDecoded, WrongLines):
        raise
    except Refusal:  # as other readings say that a file cannot be read
        return False
    return len(table.columns) > 1 and bool(columns.label_columns(table))


def of_class_files(root: Path, given: Given) -> Values | None:
    """Return the values for files with the texts of a class each, or None if they seem to be texts as a whole, with blank lines, or translations.

    Raises Question if there are several sets of such files.
    """
    found = line_files.class_files(visible_files(root), given.get("table"))
    if "name" not in given:
        if len(found) > MOST_TABLES:  # files of a corpus, such as its chapters
            return None
        otherwise = "" if any(map(split_in, found)) else "; if each file is a class, add source=text_classification"
        for name in found:
            refuse_fields(root / name, encoding_of(given), otherwise)
        if are_languages(find_line_files(root).get(TRAIN, {})):
            return None
    refuse_several_sets(root, given, [])
    if (
        not found
        or any(table_formats.suffix_of(root / name) for name in found)
        or any(split_in(PurePosixPath(name).name) for name in found)
    ):
        return None
    several = {name: lines_in(root / name, encoding_of(given)) for name in found}
    if labels := next((name for name, content in several.items() if cell_values.is_label(content)), None):
        alone = f"{labels} has a label in each line, but no other file has as many lines"
        raise Refusal(f"data={root}: {alone}: make their numbers of lines equal")
    blank = sum(not line.strip() for content in several.values() for line in content)
    are_texts = all(name.lower().endswith(TEXT_SUFFIXES) for name in found)
    return None if are_texts and blank > MOST_BLANK * sum(map(len, several.values())) and "name" not in given else COLUMNS_OF_FILES


def text_values(path: Path, table: Table, given: Given) -> Values | None:
    """Return the columns of a table of texts, or None if it holds or lists images, and no texts, or if these are names beside other columns."""
    found = columns.texts(table)
    if "text_column" not in given and table.has_images and not found:
        return None
    if found and not {"name", "text_column"} & set(given) and has_names(table):
        return None
    if not {"name", "text_column", "label_column", "task"} & set(given) and columns.with_references(
        table, columns.pair_columns(table, None)
    ):
        return None
    return columns.answered(path, table, given, "text_column", found)


def has_names(table: Table) -> bool:
    """Return True if the texts of a table are names beside many other columns, so that its rows are what it is about."""
    texts = columns.texts(table)
    words = [
        sum(map(cell_values.num_words, values)) / len(values)
        for name in texts
        if (values := [*map(str, cell_values.filled(table.columns[name]))])
    ]
    return max(words, default=0.0) <= MOST_OF_NAME and len([name for name in candidates(table) if name not in texts]) >= FEWEST_BESIDE_NAMES


def candidates(table: Table) -> list[Name]:
    """Return the columns that hold classes, or numbers that do not just count the rows."""
    return table.where(lambda values: cell_values.is_label(values) or cell_values.are_numbers(values))


def table_of_lines(files: Mapping[str, Path], given: Given) -> Table:
    return Table({name: lines_in(path, encoding_of(given)) for name, path in files.items()})


def of_line_files(root: Path, given: Given) -> Values | None:
    """Return the values for files of texts and labels, line by line, or None if no file of several has labels."""
    table = table_of_lines(find_line_files(root).get(TRAIN, {}), given)
    labels = columns.label_columns(table)
    if not labels:
        return None
    text = columns.chosen(root, table, "text_column", given, columns.texts(table))
    return {"text_column": text, "label_column": columns.chosen(root, table, "label_column", given, labels), "split_column": None}


def lines_in(path: Path, encoding: str) -> list[str]:
    """Return some lines of a file, or of pieces of a large one."""
    return cell_values.sampled([line for _, line in delimited.lines_of(streams.look(path, encoding))])


def refuse_fields(path: Path, encoding: str, otherwise: str = "") -> None:
    """Raise Refusal if each line of a file of text has two fields with a tab between them. Its text ends with what to do `otherwise`."""
    lines = [line for line in lines_in(path, encoding) if line.strip()]
    if len(lines) >= delimited.FEWEST_LINES and {line.count("\t") for line in lines} == {1}:
        way = f"rename such files to {shown(path.with_suffix('.tsv').name)} and so on{otherwise}"
        raise Refusal(f"data={path}: has 2 fields with tabs between them in each line: {way}")
