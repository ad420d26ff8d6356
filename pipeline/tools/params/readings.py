"""For each source, a function that finds its values for the data at a path, or says why they cannot be read."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pipeline.core.cells import as_number, is_missing
from pipeline.core.raw_dataset import TEST, TRAIN, VALID
from pipeline.core.refusal import Refusal, listed
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import archives, delimited, line_files, streams, table_formats, table_sets
from pipeline.prepare.reading.class_folders import split_in, words
from pipeline.prepare.reading.line_files import are_parallel, find_line_files
from pipeline.prepare.reading.table_sets import find_tables, visible_files
from pipeline.tools.params import cell_values, columns
from pipeline.tools.params.images import as_image_folder, as_image_table, class_layout
from pipeline.tools.params.labelled_texts import (
    as_labelled_texts,
    candidates,
    has_names,
    is_text,
    labelled_lines,
    lines_in,
    refuse_fields,
    refuse_listed_texts,
    table_of_lines,
)
from pipeline.tools.params.table import (
    CLASSES,
    MOST_FILES,
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
)

FEWEST_BESIDE = 3
"""A table with a column of texts, and so many columns of numbers or categories, may be read for either. Those of 0 and 1 are labels of texts."""
LABEL_WORDS = {"label", "labels", "target", "targets", "class", "classes", "y"}
UNPACK = {".gz": "zcat", ".zst": "zstdcat"}
JOINED = "_labelled.data"
"""The end of the name of a table that a user makes of files with some of its columns each."""


def as_rows(root: Path, given: Given) -> Values | None:
    """Return the column to predict, the task and the column of splits of tables whose other columns are numbers, categories and dates."""
    options, _ = train_tables(root, given)
    if "name" not in given:
        refuse_listed_texts(root, options, given)
        refuse_columns_apart(root, options, given)
    return attempted(root, options, given, row_values, "have rows to train on")


def refuse_columns_apart(root: Path, options: Sequence[Option], given: Given) -> None:
    """Raise Question if files of text beside a table without names of columns have a line for each of its rows, as labels in a file of their own."""
    for _, (path, *_) in options[:MOST_TABLES]:
        if path.name.endswith(JOINED) or not (others := columns_beside(path, given)):
            continue
        sign = delimited.csv_separator(streams.look(path, encoding_of(given))[0].text)
        contents = [
            f"<({UNPACK[each.suffix]} {shlex.quote(str(each))})" if each.suffix in UNPACK else shlex.quote(str(each))
            for each in (path, *others)
        ]
        joined = path.with_name(f"{PurePosixPath(streams.unpacked_name(path.name)).stem}{JOINED}")
        command = f"paste -d {shlex.quote(sign)} {' '.join(contents)} > {shlex.quote(str(joined))}"
        names = f"{shown(listed([each.name for each in others], MOST_LISTED))} {'have' if others[1:] else 'has'}"
        in_bash = " in bash" * ("<(" in command)
        way = f"join them into one table{in_bash}, `{command}`, and so those of other splits; to leave this out, add source=table"
        raise Question(root, f"{names} a line for each row of {shown(path.name)}: {way}")


def columns_beside(path: Path, given: Given) -> list[Path]:
    """Return the files beside a table whose names say that they have its labels, with as many lines; [] if the table has names of columns."""
    with suppress(Refusal, OSError):  # which other readings say, too
        table = Table.read(path, encoding=encoding_of(given), given=given)
        if all(isinstance(name, int) for name in table.columns):
            beside = [each for each in sorted(path.parent.iterdir()) if may_have_labels(each, path)]
            return [each for each in beside[:MOST_TABLES] if streams.num_lines(each) == streams.num_lines(path)]
    return []


def may_have_labels(path: Path, table: Path) -> bool:
    """Return True if a file is called like labels of the same split as `table`, is no table itself, and not larger."""
    is_called_so = bool(LABEL_WORDS & {*words(path.name)}) and split_in(path.name) == split_in(table.name)
    if not is_called_so or path == table or not path.is_file() or path.stat().st_size > table.stat().st_size:
        return False
    return kind_of(streams.unpacked_name(path.name)) in ("text", "other") and not table_formats.suffix_of(path)


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
    offered = [
        columns.described(name, table.columns[name], "label_column")
        + f" {columns.AS_REGRESSION}" * (cell_values.fraction(table.columns[name]) is not None)
        for name in found[:MOST_LISTED]
    ]
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


def as_text_pairs(root: Path, given: Given) -> Values | None:
    """Return the columns of the source texts and the target texts of parallel files, of the only table of train, or of a file with fields in each line."""
    found = find_line_files(root)
    is_chosen = bool({"name", "target_column"} & set(given)) and len(found.get(TRAIN, {})) > 1
    if (is_chosen or are_parallel(found)) and not any(map(table_formats.suffix_of, found[TRAIN].values())):
        for path in found[TRAIN].values() if "name" not in given else ():
            refuse_fields(path, encoding_of(given))
        return columns.pair(root, table_of_lines(found[TRAIN], given), given)
    options, _ = train_tables(root, given)
    if not options:
        of_lines = find_tables(root, given.get("table"), of_lines=True).get(TRAIN, [])
        table = Table.of_fields(of_lines[0], encoding_of(given)) if of_lines else None
        return columns.pair(of_lines[0], table, given) if table else None
    return attempted(root, options, given, columns.pair, "have pairs of texts")


def asked_of_lines(root: Path, given: Given) -> Question | None:
    """Return the question which file to write for another, if all files in `root`, at most MOST_LISTED, have as many lines as those beside them."""
    files = find_line_files(root)
    of_train = [*files.get(TRAIN, {}).values()]
    names = [name for name in visible_files(root) if not table_formats.is_document(name)]
    are_all = len(names) == sum(map(len, files.values())) and 1 < len(of_train) <= MOST_LISTED
    if are_all and len({path.parent for path in of_train}) == 1 and streams.num_lines(of_train[0]) >= delimited.FEWEST_LINES:
        try:
            as_text_pairs(root, {**given, "name": "text_pairs"})
        except Question as error:
            return error
    return None


def asked_of_pairs(root: Path, given: Given) -> Question | None:
    """Return the question which column to write for another, if the only table of train has several columns of texts, or only columns of strings."""
    try:
        options, _ = train_tables(root, given)
        table = Table.read(*options[0][1], encoding=encoding_of(given), given=given) if len(options) == 1 else Table({})
        num_texts, only_words = len(columns.texts(table)), all(map(cell_values.are_words, table.columns.values()))
        if num_texts > 1 or (not num_texts and only_words and table.where(cell_values.are_strings)):
            as_text_pairs(root, {**given, "name": "text_pairs"})
    except Question as error:
        return error
    except Refusal:  # which other readings say, too
        return None
    return None


def as_arrays(root: Path, given: Given) -> Values | None:  # noqa: ARG001  # as the other readers
    is_folder = root.is_dir() and any(path.suffix == ".npy" for path in root.iterdir())
    return {} if is_folder or root.suffix.lower() == ".npz" else None


def as_corpus(root: Path, given: Given) -> Values | None:
    if "name" in given:
        return {}
    names = visible_files(root)
    of_class = line_files.class_files(names, None)  # files of a class each, which may also be the parts of a text
    by_stem = len({PurePosixPath(name).stem for name in of_class}) > 1
    if (
        table_formats.suffix_of(root)
        or 2 * len(table_sets.tables_in(root)) > len(names)
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
    for path in cell_values.sampled([root / name for name in names], MOST_FILES) if root.is_dir() else [root]:
        table = Table.of_fields(path, encoding_of(given))
        if table is not None and columns.pair_columns(table, None):
            return None
        refuse_labelled_lines(path, encoding_of(given))
        refuse_fields(path, encoding_of(given), "; if it is a text, add source=text")
    splits = [split_in(name) for name in names if not table_formats.is_document(name)]
    return {"divide": "splits"} if root.is_dir() and TRAIN in splits and {*splits} & {VALID, TEST} and None not in splits else {}


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
