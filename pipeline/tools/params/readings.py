"""For each source, a function that finds its values for the data at a path, or says why they cannot be read."""

import os.path
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pipeline.core.cells import as_number, is_missing
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.section import suggestion
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import archives, delimited, line_files, streams, tables
from pipeline.prepare.reading.class_folders import ClassFolders, split_in
from pipeline.prepare.reading.delimited import WrongLines
from pipeline.prepare.reading.json_rows import is_nested
from pipeline.prepare.reading.line_files import are_languages, are_parallel, find_line_files
from pipeline.prepare.reading.tables import SeveralSets, find_tables, visible_files
from pipeline.tools.params import cell_values, columns
from pipeline.tools.params.images import as_image_folder, as_image_table, class_layout
from pipeline.tools.params.table import (
    CLASSES,
    MOST_LISTED,
    MOST_TABLES,
    REGRESSION,
    SEVERAL,
    TEXT_SUFFIXES,
    Given,
    Name,
    Option,
    Question,
    Table,
    Values,
    attempted,
    encoding_of,
    kind_of,
    train_tables,
    ways,
)

COLUMNS_OF_FILES: dict[str, Any] = {"text_column": None, "label_column": None, "split_column": None}
MOST_BLANK = 0.05
"""The share of blank lines in files whose lines are samples. Prose and verse have more."""
FEWEST_BESIDE = 3
"""A table with a column of texts, and so many columns of numbers or categories, may be read for either. Those of 0 and 1 are labels of texts."""
MOST_OF_NAME, FEWEST_BESIDE_NAMES = 5, 5
"""Texts of so few words on average are names, such as those of passengers or cars, if so many columns of numbers or categories are beside them."""


def as_rows(root: Path, given: Given) -> Values | None:
    """Return the column to predict, the task and the column of splits of tables whose other columns are numbers, categories and dates.

    Raises Question if there are only other files, and one has rows of numbers.
    """
    if {*map(kind_of, visible_files(root))} <= {"text", "other"} and (name := next(unnamed_tables(root, given), None)):
        path = root / name if root.is_dir() else root
        renamed = f"call it {shown(path.with_suffix('.csv').name)}, with whatever separator"
        raise Question(root, f"{shown(name)} has rows of numbers, but is no table by its name: {renamed}")
    options, _ = train_tables(root, given)
    if "name" not in given:
        refuse_listed_texts(root, options, given)
    return attempted(root, options, given, row_values, "have rows to train on")


def row_values(path: Path, table: Table, given: Given) -> dict[str, Any] | None:
    """Return the values for a table of rows, or None if it holds or lists images, or has texts and little else.

    Raises Refusal and Question if it has texts beside other columns, or if the column to predict, or what it holds, is not clear.
    """
    marks = {str(mark) for mark in given.get("missing") or ()}
    columns_read = table.columns.items()
    table = table._replace(columns={name: ["" if str(cell).strip() in marks else cell for cell in each] for name, each in columns_read})
    texts = columns.texts(table)
    usable = [name for name in candidates(table) if name not in texts and not (texts and cell_values.is_mark(table.columns[name]))]
    if "name" not in given:
        if table.has_images or (texts and len(usable) < FEWEST_BESIDE):
            return None
        if texts and not has_names(table):
            beside = f"the column {shown(texts[0], 60)} has texts, and {len(usable)} others have numbers or categories"
            questions = [f"{beside}: to train on these, add source=table; on the texts alone, add source=text_classification"]
            try:
                target_column(path, table, given, columns.split_column(path, table, given))
            except Question as error:
                questions += error.questions
            raise Question(path, *questions)
    split = columns.split_column(path, table, given)
    if isinstance(names := given.get("label_column"), list):
        are_marks = all(cell_values.is_mark(table.columns.get(name, ())) for name in names)
        return {"split_column": split, **columns.labels(path, table, given if are_marks else {"task": REGRESSION, **given})}
    if given.get("task") == SEVERAL and "label_column" not in given:
        return {"split_column": split, "task": SEVERAL, **columns.labels(path, table, given, [split])}
    label = target_column(path, table, given, split)
    if given.get("task") == SEVERAL or ("task" not in given and label in columns.list_columns(table)):
        return {"split_column": split, **columns.labels(path, table, {**given, "label_column": label})}
    return {"label_column": label, "task": given.get("task") or task_of(path, table, label), "split_column": split}


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


def target_column(path: Path, table: Table, given: Given, split: Name | None) -> Any:
    """Return the column to predict: the one that `given` names, the only one with such a name, or the only possible one. Raises Question."""
    if "label_column" in given:
        return columns.chosen(path, table, "label_column", {"task": REGRESSION, **given}, ())
    found = [name for name in dict.fromkeys((*candidates(table), *columns.list_columns(table))) if name != split]
    columns.refuse_unfit(path, table, given, found)
    named = [name for name in columns.called_target(table) if name in found]
    if len(named) == 1 or len(found) < 2:
        return columns.chosen(path, table, "label_column", given, named or found)
    found = [found[-1], *found[:-1]]
    offered = [columns.described(name, table.columns[name], "label_column") for name in found[:MOST_LISTED]]
    more = " or that of another column" if len(found) > MOST_LISTED else ""
    problem = f"{len(found)} columns may be the one to predict{columns.without_values(table)}"
    raise Question(path, f"{problem}: add {' or '.join(offered)}{more}{of_whole_numbers(table, found[:MOST_LISTED])}")


def of_whole_numbers(table: Table, found: Sequence[Name]) -> str:
    """Return what to add for a column of `found` whose whole numbers may be classes or numbers; or "" if there is none."""
    for name in found:
        try:
            task_of(Path(), table, name)
        except Question:
            return f"; for whole numbers, such as those of {shown(name, 60)}, say also if they are classes, {columns.AS_CLASSES}, or not, {columns.AS_REGRESSION}"
    return ""


def task_of(path: Path, table: Table, label: Name) -> str:
    """Return the task of a column to predict. Texts, two numbers, and whole numbers without gaps from 0 or 1 are classes; fractions, and numbers that seldom
    repeat, are numbers.

    Raises Question for other whole numbers, and for more than columns.MOST_NUMBERED with a unit.
    """
    values = table.columns[label]
    known = sorted({*(cell_values.numbers(values) or ())})
    has_unit = any(as_number(value) is None for value in values if not is_missing(value))
    if len(known) <= 2 or (has_unit and len(known) <= columns.MOST_NUMBERED and cell_values.is_label(values)):
        return CLASSES
    if not all(number.is_integer() for number in known) or not cell_values.is_label(table.columns[label]):
        return REGRESSION
    if known[0] in (0, 1) and known[-1] - known[0] == len(known) - 1 < columns.MOST_NUMBERED:
        return CLASSES
    raise columns.either(path, label, known)


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
        if are_of_train or not any(kind_of(name) in ("text", "other") and not tables.is_document(name) for name in names):
            raise
        values = None  # the tables may describe texts in files
    if values is not None or are_of_train:
        return values
    if values := of_line_files(root, given) or of_labelled_lines(root, given) or of_class_files(root, given):
        return values
    if "name" not in given:
        refuse_listed_texts(root, options, given)
        refuse_loose_texts(root)
    layout = class_layout(root, is_text)
    if layout and "name" not in given:
        refuse_equal_names(root, layout)
    is_of_texts = layout and 2 * sum(is_text(sample.name) for sample in layout.samples) > len(layout.samples)
    return COLUMNS_OF_FILES if is_of_texts else None


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
            raise Question(
                root, f"{lists}: write their texts into a column of it; if the folders are classes, add source=text_classification"
            )


def are_in(values: Sequence[str], known: Collection[str]) -> bool:
    """Return True if most values are known, and most of them different."""
    num_known = sum(value in known or PurePosixPath(value).stem in known for value in values)
    return 2 * num_known > len(values) < 2 * len({*values})


def refuse_loose_texts(root: Path) -> None:
    """Raise Question if `root` has files that may have the texts of a class each, and folders that may be classes."""
    names = visible_files(root)
    classes = line_files.class_files([name for name in names if "/" not in name and kind_of(name) == "text"], None)
    if classes and not any(map(split_in, classes)) and any("/" in name for name in names):
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
        paths = list[Path]()
        for path in [root / name for name in visible_files(root) if "/" not in name]:
            with suppress(streams.NotDecoded, WrongLines):  # as it is no text, or one beside others
                paths += [path] if labelled_lines([path], encoding_of(given)) else []
        if len(paths) > 1:
            names = [path.name for path in paths]
            first, last = (os.path.commonprefix(some) for some in (names, [name[::-1] for name in names]))  # noqa: RUF071  # of characters
            raise Question(root, f"{len(names)} files have a label in each line: add {ways('table', (f'{first}*{last[::-1]}', *names))}")
        place = paths[0] if paths else root
    else:
        place, paths = root, of_splits.get(TRAIN, [])
        paths = paths if paths and labelled_lines(paths, encoding_of(given)) else []
        refuse_several_sets(root, given, paths)
    return attempted(root, [({"root": place}, paths)], given, text_values, "have labelled texts") if paths else None


def refuse_several_sets(root: Path, given: Given, labelled: Sequence[Path]) -> None:
    """Raise Question if `root` has several sets of files with equal stems, such as `reviews.pos` and `reviews.neg`, or one and files `labelled`."""
    names = [name for name in visible_files(root) if "/" not in name and kind_of(name) == "other" and not split_in(name)]
    sets = [f"{stem}.*" for stem, count in Counter(PurePosixPath(name).stem for name in names).items() if count > 1]
    choices = [*(path.relative_to(root) for path in labelled[:1]), *sets]
    if sets and len(choices) > 1 and given.get("table") is None:
        beside = f"{shown(choices[0])} with a label in each line, and " if labelled else ""
        suffixes = f"{beside}{counted(len(sets), 'set')} of files whose suffixes may be classes"
        raise Question(root, f"has {suffixes}: add {ways('table', choices)}")


def labelled_lines(paths: Sequence[Path], encoding: str) -> bool:
    """Return True if the lines of files that are no tables have labels beside other fields. Raises NotDecoded if they are not in `encoding`."""
    if any(tables.is_document(path) or kind_of(path.name) not in ("text", "other") for path in paths):
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
        otherwise = "" if any(map(split_in, found)) else "; if each file is a class, add source=text_classification"
        for name in found:
            refuse_rows(root / name, encoding_of(given), otherwise)
        if are_languages(find_line_files(root).get(TRAIN, {})):
            return None
    refuse_several_sets(root, given, [])
    if not found or any(split_in(PurePosixPath(name).name) for name in found):
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


def as_text_pairs(root: Path, given: Given) -> Values | None:
    """Return the columns of the source texts and the target texts of parallel files, of the only table of train, or of a file with fields in each line."""
    found = find_line_files(root)
    if are_parallel(found):
        for path in found[TRAIN].values() if "name" not in given else ():
            refuse_rows(path, encoding_of(given))
        return columns.pair(root, table_of_lines(found.get(TRAIN, {}), given), given)
    options, _ = train_tables(root, given)
    if not options:
        of_lines = find_tables(root, given.get("table"), of_lines=True).get(TRAIN, [])
        table = Table.of_fields(of_lines[0], encoding_of(given)) if of_lines else None
        return columns.pair(of_lines[0], table, given) if table else None
    return attempted(root, options, given, columns.pair, "have pairs of texts")


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


def as_arrays(root: Path, given: Given) -> Values | None:  # noqa: ARG001  # as the other readers
    is_folder = root.is_dir() and any(path.suffix == ".npy" for path in root.iterdir())
    return {} if is_folder or root.suffix.lower() == ".npz" else None


def unnamed_tables(root: Path, given: Given) -> Iterator[str]:
    """Yield the files directly in `root`, or `root`, that have rows of numbers and no suffix of a table."""
    for name in visible_files(root):
        if (
            "/" not in name
            and kind_of(name) in ("text", "other")
            and not name.lower().endswith(archives.SUFFIXES)
            and not tables.is_document(name)
        ):
            with suppress(Refusal, OSError):  # as it is no text
                if delimited.holds_numbers(streams.look(root / name if root.is_dir() else root, encoding_of(given))[0].text):
                    yield name


def lines_in(path: Path, encoding: str) -> list[str]:
    """Return some lines of a file, or of pieces of a large one."""
    return cell_values.sampled([line for _, line in delimited.lines_of(streams.look(path, encoding))])


def as_corpus(root: Path, given: Given) -> Values | None:
    if "name" in given:
        return {}
    names = visible_files(root)
    of_class = line_files.class_files(names, None)  # files of a class each, which may also be the parts of a text
    by_stem = len({PurePosixPath(name).stem for name in of_class}) > 1
    if (
        any(unnamed_tables(root, given))
        or root.name.lower().endswith(archives.SUFFIXES)
        or not names
        or not (by_stem or all(name.lower().endswith(TEXT_SUFFIXES) for name in names))
        or are_parallel(find_line_files(root))
    ):
        return None
    if not of_class:
        try:
            layout = class_layout(root, is_text)
        except Refusal:  # which that of labelled texts says, too
            return None
        if layout and len(layout.classes) > 1:
            return None
    for path in [root / name for name in names] if root.is_dir() else [root]:
        table = Table.of_fields(path, encoding_of(given))
        if table is not None and columns.pair_columns(table, None):
            return None
        refuse_labelled_lines(path, encoding_of(given))
        refuse_rows(path, encoding_of(given), "; if it is a text, add source=text")
    splits = [split_in(name) for name in names if not tables.is_document(name)]
    return {"divide": "splits"} if root.is_dir() and TRAIN in splits and {*splits} & {VALID, TEST} and None not in splits else {}


def refuse_rows(path: Path, encoding: str, otherwise: str = "") -> None:
    """Raise Refusal if the lines of a file of text are rows in a form that another suffix would name. Its text ends with what to do `otherwise`."""
    lines = [line for line in lines_in(path, encoding) if line.strip()]
    tabs = {line.count("\t") for line in lines}
    if len(lines) > 1 and all(map(is_nested, lines)):
        what, suffix = "JSON in each line", ".jsonl"
    elif len(lines) >= delimited.FEWEST_LINES and len(tabs) == 1 and tabs != {0}:
        what, suffix = f"{max(tabs) + 1} fields with tabs between them in each line", ".tsv"
    else:
        return
    raise Refusal(f"data={path}: has {what}: rename such files to {shown(path.with_suffix(suffix).name)} and so on{otherwise}")


def refuse_labelled_lines(path: Path, encoding: str) -> None:
    """Raise Refusal if the lines of a file of text have labels, or are labels: a corpus is only what nothing labels."""
    if labelled_lines([path], encoding):
        raise Refusal(f"data={path}: has a label in each line; if it is a text without labels, add source=text")
    if cell_values.is_label([line for line in cell_values.sampled(lines_in(path, encoding)) if line.strip()]):
        way = "put a file with the texts beside it, line by line, such as train_text.txt beside train_labels.txt, and write as data=PATH their folder"
        raise Refusal(f"data={path}: has a label in each line: {way}; or, if it is a text, add source=text")


class Reader(NamedTuple):
    """How a source reads data: `title` says as what, and `kinds` are the kinds of files that it reads.

    `values` returns its values for the data at a path, or None if they are no such data. It raises Refusal if they seem to be, and cannot be
    read, or if a key of `source` must decide.
    """

    title: str
    kinds: set[str]
    values: Callable[[Path, Given], Values | None]


READERS = {
    "image_folder": Reader("images in folders by class", {"image"}, as_image_folder),
    "image_table": Reader("images that a table lists", {"image", "table"}, as_image_table),
    "table": Reader("rows of numbers and categories", {"table"}, as_rows),
    "text_classification": Reader("labelled texts", {"table", "text"}, as_labelled_texts),
    "text_pairs": Reader("pairs of texts", {"table", "text"}, as_text_pairs),
    "arrays": Reader("NumPy arrays", {"array"}, as_arrays),
    "text": Reader("texts without labels, for a language model", {"text"}, as_corpus),
}
"""The readers by their sources. With `source=NAME`, only this one is asked."""
