"""Finds out which columns of a table hold the texts or images, and which one the labels. Values decide, not the names of columns."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pipeline.core.cells import as_number, as_truth, is_missing
from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal, counted, listed
from pipeline.core.section import SIMILARITY
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import parquet, table_formats
from pipeline.prepare.reading.class_folders import is_certain, split_of_value
from pipeline.prepare.reading.labels import labels_of_cell
from pipeline.prepare.reading.listed_images import candidates
from pipeline.tools.params import cell_values
from pipeline.tools.params.table import CLASSES, MOST_LISTED, REGRESSION, SEVERAL, WORDS, Given, Name, Question, Table, assignment, ways

AS_CLASSES, AS_REGRESSION, AS_SEVERAL = (assignment("task", task) for task in (CLASSES, REGRESSION, SEVERAL))
SAMPLED_PATHS = 200
MOST_OFFERED = 3
MOST_INFLECTED = 4
"""A table of so many columns, all of short strings, may be of pairs although one has labels, such as a word, a form of it, and the name of the form."""
NAMES = ("target", "label", "labels", "class", "y")
"""Names of a column that leave no doubt that it is to be predicted."""
MOST_NUMBERED = 20
"""More different whole numbers than this, with gaps between them, are not taken for classes without a question."""


def paths(table: Table, by_stem: Mapping[str, Sequence[str]]) -> dict[Name, int]:
    """Return the columns with paths of images, and for each the number of its sampled values that are images in `by_stem`.

    In such a column most values are images there and no labels, or have the names of image files.
    """
    found = dict[Name, int]()
    for name, values in table.columns.items():
        written = (str(value) for value in cell_values.filled(values) if not isinstance(value, float))
        distinct = cell_values.sampled([*dict.fromkeys(written)], SAMPLED_PATHS)
        num_existing = sum(bool(candidates(value, by_stem)) for value in distinct)
        if cell_values.are_image_names(distinct) or (num_existing > len(distinct) / 2 and not cell_values.is_label(values)):
            found[name] = num_existing
    return found


def split_column(path: Path, table: Table, given: Given) -> Name | None:
    """Return the column of the splits: the one that `given` names, or else the only one in which all values are splits, train and others."""
    if "split_column" in given and given["split_column"] is None:
        return None
    found = [name for name in table.columns if given.get("label_column") != name and means_splits(table, name)]
    found = [name for name in found if is_certain(str(name), map(str, table.columns[name]))]
    return chosen(path, table, "split_column", given, found) if found or "split_column" in given else None


def means_splits(table: Table, name: Name) -> bool:
    """Return True if all values of a column mean splits, train and others."""
    different = {*map(str, table.columns[name])}
    if len(different) > MOST_NUMBERED:  # such as the names of the samples
        return False
    try:
        found = {split_of_value(value, str(name)) for value in different}
    except Refusal:
        return False
    return len(found) > 1 and TRAIN in found


def labels(path: Path, table: Table, given: Given, others: Iterable[Name | None] = ()) -> dict[str, Any]:
    """Return the values of the section `source` for the labels: their column, or the columns that `given` lists, and what is particular about the task.

    `others` hold something else. Raises Refusal like `chosen`.
    """
    task, wanted = given.get("task"), given.get("label_column")
    if isinstance(wanted, list):
        chosen(path, table, "label_column", given, ())  # refuses columns that do not exist
        if task is None and not all(cell_values.is_mark(table.columns.get(name, ())) for name in wanted):
            raise Question(path, f"these columns have other values than 0 and 1: to train a regression, add {AS_REGRESSION}")
        return {"task": task or (CLASSES if are_exclusive(table, wanted) else SEVERAL), "label_column": wanted}
    rest = table._replace(columns={name: values for name, values in table.columns.items() if name not in others})
    if task == REGRESSION:
        return {"label_column": chosen(path, table, "label_column", given, rest.where(cell_values.are_numbers))}
    fitting, lists, marks = label_columns(rest), list_columns(rest), rest.where(cell_values.is_mark)
    refuse_unfit(path, rest, given, [*fitting, *lists, *marks])
    if several := several_labels(path, table, given, fitting, lists, marks):
        return several
    if wanted is None and task is None and not fitting and (found := rest.where(cell_values.are_numbers)):
        have, which = ("have", f" {ways('label_column', found)}") if found[1:] else ("has", "")
        problem = f"no column has classes{without_values(table)}, but {listed([*map(str, found)], MOST_LISTED)} {have} numbers"
        raise Question(path, f"{problem}: to train a regression, add {AS_REGRESSION}{which}")
    measured = [name for name in rest.columns if name not in fitting and cell_values.fraction(rest.columns[name]) is not None]
    if wanted is None and task is None and len(fitting) == 1 and measured and fitting[0] not in called_target(table):
        classes = f"add {AS_CLASSES} {described(fitting[0], table.columns[fitting[0]], 'label_column')}"
        raise Question(path, f"the labels may be classes or numbers: {classes} or {AS_REGRESSION} {ways('label_column', measured)}")
    label = chosen(path, table if "label_column" in given else rest, "label_column", given, fitting)
    known = sorted(set(cell_values.numbers(table.columns.get(label, ())) or ()))
    if task is None and label not in table.named_classes and len(known) > MOST_NUMBERED and known[-1] - known[0] >= len(known):
        raise either(path, label, known)
    return {"label_column": label}


def several_labels(
    path: Path, table: Table, given: Given, fitting: Sequence[Name], lists: Mapping[Name, str], marks: Sequence[Name]
) -> dict[str, Any] | None:
    """Return the values for samples with several labels each, or None if each has one. The classes may be in the columns `fitting`.

    The labels are in one of `lists`, with its delimiter, or in all of `marks`, the columns of 0 and 1. Raises Refusal like `chosen`.
    """
    task, wanted = given.get("task"), given.get("label_column")
    if wanted is None and not lists and len(marks) > 1:
        if task == SEVERAL:
            return {"label_column": marks}
        if task is None and set(fitting) <= set(marks) and not are_exclusive(table, marks):
            several = f"{len(marks)} columns of 0 and 1 may be labels, of which a sample may have several"
            raise Question(path, f"{several}: add {AS_SEVERAL}; if one of them is the class, add {ways('label_column', marks)}")
    possible = {name: sign for name, sign in lists.items() if wanted in (None, name)}
    if task is None and possible:
        refuse_either(path, table, possible, [name for name in fitting if wanted in (None, name)])
    if task != SEVERAL and (task is not None or not possible):
        return None
    if wanted is None and not possible:
        raise Refusal(
            f"data={path}: no column has lists of labels, such as a;b, and no two have only 0 and 1: write such columns, or name them by source.label_column"
        )
    name = chosen(path, table, "label_column", {**given, "task": SEVERAL}, [*possible])
    written = [value for value in table.columns.get(name, ()) if isinstance(value, str)]
    signs = [sign for sign in cell_values.DELIMITERS[:-1] if any(sign in value for value in written)]
    if name not in lists and "label_delimiter" not in given and signs:
        unclear = f"it is not clear what separates the labels in the column {shown(name, 60)}"
        raise Question(path, f"{unclear}: add {ways('label_delimiter', (*signs, None))}")
    return {"task": SEVERAL, "label_column": name, "label_delimiter": lists.get(name) or None}


def either(path: Path, name: Name, known: Sequence[float]) -> Question:
    """Return the question whether a column with the whole numbers `known`, in ascending order, has classes or numbers."""
    problem = f"the column {shown(name, 60)} has {len(known)} different whole numbers from {known[0]:.0f} to {known[-1]:.0f}"
    return Question(path, f"{problem}: to predict numbers, add {AS_REGRESSION}; if they are classes, add {AS_CLASSES}")


def called_target(table: Table) -> list[Name]:
    """Return the columns whose name leaves no doubt that they are to be predicted. A column `y` beside `x` and `z` is a coordinate."""
    certain = {*NAMES} - {"y"} if {"x", "z"} <= {*map(str, table.columns)} else NAMES
    return [name for name in table.columns if str(name).lower() in certain]


def refuse_unfit(path: Path, table: Table, given: Given, found: Sequence[Name]) -> None:
    """Raise Question if no column is given, and one that is called like a target is none of `found`, those that may be labels.

    One cell with a unit, or with another mark for a missing value, is enough for that.
    """
    named = [name for name in called_target(table) if cell_values.filled(table.columns[name])]
    if "label_column" in given or not named or not found or set(named) & set(found):
        return
    values, way = cell_values.filled(table.columns[named[0]]), assignment("label_column", named[0])
    mistaken = [value for value in values if as_number(value) is None and not is_missing(value)]
    if cell_values.are_numbers(values) and not mistaken:
        remedy = f"to predict them, add {AS_REGRESSION} {way}"
    else:
        remedy = f"correct cells such as {shown(mistaken[0], 30)}" if mistaken else "no model can predict it"
    has = f"the column {shown(named[0], 60)} has {kind(table, named[0])}"
    raise Question(path, f"{has}: {remedy}; to predict another column, add {ways('label_column', found)}")


def refuse_either(path: Path, table: Table, lists: Mapping[Name, str], fitting: Sequence[Name]) -> None:
    """Raise Question unless the only labels are in one column of `lists`, whose samples may have several. Those of `fitting` may be classes."""
    if len(lists) == 1 and not fitting:
        return
    name = next(iter(lists))
    values = table.columns[name]
    example = next((value for value in values if len(labels_of_cell(value, lists[name])) > 1), values[0])
    several = " or ".join(f"{AS_SEVERAL} {assignment('label_column', each)}" for each in [*lists][:MOST_LISTED])
    classes = " or ".join(f"{AS_CLASSES} {described(each, table.columns[each], 'label_column')}" for each in fitting[:MOST_LISTED])
    question = f"samples may have several labels, such as {shown(example, 60)} in the column {shown(name, 60)}: add {several}"
    raise Question(path, question + (f"; for one class a sample, add {classes}" if classes else ""))


def list_columns(table: Table) -> dict[Name, str]:
    """Return the columns with several labels a sample, and for each its delimiter, or "" if its cells are lists."""
    found = {name: cell_values.delimiter_of(values) for name, values in table.columns.items()}
    return {name: delimiter for name, delimiter in found.items() if delimiter is not None}


def are_exclusive(table: Table, marks: Sequence[Name]) -> bool:
    """Return True if each row has a 1 in exactly one of the columns `marks`."""
    rows = zip(*(table.columns[name] for name in marks), strict=False)
    return all(sum(bool(as_truth(value)) for value in row) == 1 for row in rows)


def label_columns(table: Table) -> list[Name]:
    """Return the columns that may hold the classes.

    Of columns that divide the rows in the same way, such as `label` and `label_name`, the first one with names counts, or else the first.
    """
    found = [name for name in table.columns if name in table.named_classes] or table.where(cell_values.is_label)
    kept = dict[tuple[int, ...], Name]()
    for name in sorted(found, key=lambda name: all(str(value).lstrip("-").isdigit() for value in table.columns[name])):
        kept.setdefault(cell_values.division(table.columns[name]), name)
    return sorted(kept.values(), key=found.index)


def texts(table: Table) -> list[Name]:
    return table.where(lambda values: cell_values.is_text(values) and cell_values.delimiter_of(values) is None)


def pair(path: Path, table: Table, given: Given) -> dict[str, Any] | None:
    """Return the columns of the source texts and the target texts, and that of the splits. None for a table that seems to have no pairs.

    Raises Question: only the user can say which of two columns is the source.
    """
    split = split_column(path, table, given)
    is_wanted, strings = bool({"name", "target_column"} & set(given)), pair_columns(table, split)
    if not is_wanted and (not strings or {"label_column", "task"} & set(given)):
        return None
    sources = with_references(table, strings)
    taken = (split, given.get("text_column"), given.get("target_column"))
    found = strings or [name for name in table.where(cell_values.are_strings) if name != split]
    filled = table.where(lambda values: bool(cell_values.filled(values)))
    others = [name for name in found if name not in taken]
    if len(others) + ("text_column" in given) + ("target_column" in given) < 2:
        others = [name for name in filled if name not in taken]
    if not is_wanted and sources:
        [source], [target] = sources, [name for name in strings if name not in sources]
        values = table.columns[source]
        several = f"the column {shown(source, 60)} has {len(set(values))} different texts in {len(values)} rows"
        pairs = f"to write those of the column {shown(target, 60)} for them, add {assignment('target_column', target)}"
        classes = f"{assignment('label_column', source)} {AS_CLASSES}"
        raise Question(path, f"{several}: {pairs}; if they are classes, add {classes}")
    if "target_column" not in given and others:
        classes = "" if label_columns(table) or list_columns(table) else f"no column has classes{without_values(table)}, but "
        texts = f"{classes}{len(others)} {'have' if classes else 'columns have'} texts: to train a model that reads the text of one column and writes that of another"
        which = f"{ways('target_column', others)} for the column to write"
        if "text_column" not in given and len(others) > 2:
            others.sort(key=lambda name: not cell_values.is_text(table.columns[name]))  # such as ids
            every = [*others, *(name for name in filled if name not in (*taken, *others))]
            which = f"{assignment('text_column', others[0])} {assignment('target_column', others[1])}, or other two of {listed([shown(name, 40) for name in every], MOST_LISTED)}"
        raise Question(path, f"{texts}, add {which}{of_numbers(path, table, others)}")
    written = chosen(path, table, "target_column", given, others)
    return {
        "text_column": chosen(path, table, "text_column", given, [name for name in others if name != written]),
        "target_column": written,
        "split_column": split,
    }


def pair_columns(table: Table, split: Name | None) -> list[Name]:
    """Return the columns that may be pairs of texts: two or more of strings with words, beside none of classes unless all are short strings; or, if the
    table has two columns of strings and else only those that count the rows, these two, even if one has dates, amounts or texts that recur. Else [].
    """
    rest = {name: cell_values.filled(values) for name, values in table.columns.items() if name != split}
    are_plain = {name: all(as_number(cell) is not None for cell in values if not is_missing(cell)) for name, values in rest.items()}
    strings = [name for name, values in rest.items() if all(isinstance(cell, str) for cell in values) and not are_plain[name]]
    varied = [name for name in strings if cell_values.is_varied(rest[name])]
    if len(strings) == 2 and varied and not any(map(cell_values.are_numbers, (rest[name] for name in rest if name not in strings))):
        return strings if len(varied) == 2 or with_references(table, strings) else []
    texts = [name for name in varied if cell_values.are_strings(rest[name])]
    have_labels = bool(label_columns(table) or list_columns(table))
    are_inflected = len(strings) == len(rest) <= MOST_INFLECTED and not any(map(cell_values.is_text, rest.values()))
    return texts if len(texts) > 1 and (not have_labels or are_inflected) else []


def with_references(table: Table, strings: Sequence[Name]) -> list[Name]:
    """Return that of two columns of `strings` whose texts recur, because the other one has several references for each; or []."""
    if len(strings) != 2:
        return []
    source, other = sorted(strings, key=lambda name: len(set(table.columns[name])))
    return [source] if cell_values.recurs(table.columns[source]) and cell_values.is_varied(table.columns[other]) else []


def of_numbers(path: Path, table: Table, found: Sequence[Name]) -> str:
    """Return the advice for a file of text whose first line may be texts, because a name of the columns `found` has several words; else ""."""
    if table_formats.suffix_of(path) in (*table_formats.JSON_LINES, ".json", parquet.SUFFIX) or not any(
        cell_values.num_words(str(name)) > 1 for name in found
    ):
        return ""
    number = [*table.columns].index(found[-1]) + 1
    return f"; if the first line has texts instead of names, write the number of the column, such as {assignment('target_column', number)}"


def answered(path: Path, table: Table, given: Given, key: str, found: Sequence[Name]) -> dict[str, Any]:
    """Return the columns for `key` and for the labels and splits. `found` are those that fit `key`. Raises Refusal like `chosen`, with all questions at once."""
    split = split_column(path, table, given)
    answers, questions, refusals = {"split_column": split}, list[str](), list[Refusal]()
    others = (*([given[key]] if key in given else found), split)
    for answer in (lambda: {key: chosen(path, table, key, given, found)}, lambda: labels(path, table, given, others)):
        try:
            answers |= answer()
        except Question as error:
            questions += error.questions
        except Refusal as error:
            refusals.append(error)
    if refusals:
        raise Refusal("; and ".join([str(refusals[0]), *questions]))
    if questions:
        raise Question(path, *questions)
    return answers


def chosen(path: Path, table: Table, key: str, given: Given, found: Sequence[Name]) -> Name:
    """Return the column for `key` of the section `source`: the one that `given` names, or else the only one of `found`, those that fit.

    Raises Refusal if the given column does not exist, or if none or several fit.
    """
    names: list[Name] = [*table.columns, *table.holds_images]
    if key in given:
        column: Name = given[key]
        several = [*given[key]] if isinstance(given[key], list) else [column]
        if absent := [name for name in several if name not in names]:
            close = get_close_matches(str(absent[0]), map(str, names), n=1, cutoff=SIMILARITY)
            remedy = (
                f"write {assignment(key, close[0])}"
                if close
                else f"choose one of {listed([shown(name, 40) for name in names], MOST_NUMBERED)}"
            )
            raise Refusal(f"source.{key}={shown(absent[0], 60)}: {shown(path)} has no such column: {remedy}")
        is_of_classes = key == "label_column" and given.get("task", CLASSES) == CLASSES and several == [column]
        if is_of_classes and (value := cell_values.fraction(table.columns.get(column, []))) is not None:
            regression = f"to train a regression, add {AS_REGRESSION}; store classes as names or whole numbers"
            raise Question(path, f"the column {shown(column, 60)} has numbers with fractions, such as {shown(value, 20)}: {regression}")
        return column
    if len(found) == 1:
        return found[0]
    if found:
        words = " or ".join(described(name, table.columns.get(name, ()), key) for name in found[:MOST_LISTED])
        raise Question(path, f"{len(found)} columns may hold {WORDS[key]}: add {words}{hint(table, key, found)}")
    if nested := table.where(cell_values.are_objects):
        raise Refusal(f"data={path}: the column {shown(nested[0], 60)} has objects, which no source reads: write a row for each of them")
    varied = sorted(names, key=lambda name: -len({*map(str, table.columns.get(name, ()))}))
    offered = " or ".join(f"{assignment(key, name)} ({kind(table, name)})" for name in varied[:MOST_OFFERED])
    remedy = (
        f"if one of {counted(len(names), 'column')} holds them, add {offered}"
        if names
        else "add a column with them, divided from the others by a comma, semicolon, tab or bar"
    )
    raise Refusal(f"data={path}: no column looks like {WORDS[key]}{without_values(table)}: {remedy}")


def hint(table: Table, key: str, found: Sequence[Name]) -> str:
    """Return what else the columns `found`, which fit `key`, may mean; or ""."""
    if key == "text_column":
        return "; to classify two texts together, join them in one column first"
    marks = [name for name in found if key == "label_column" and cell_values.is_mark(table.columns[name])]
    sentence = ""
    if marks and isinstance(marks[0], str) and are_exclusive(table, marks):
        way = shlex.quote(f"source.label_column={json.dumps(marks, ensure_ascii=False)}")
        sentence = f"; each row has a 1 in one of {counted(len(marks), 'column')}, so they may be one class: add {way}"
    if key == "label_column" and len(numeric := [name for name in found if cell_values.are_numbers(table.columns.get(name, ()))]) > 1:
        several = shlex.quote(f"source.label_column={json.dumps(numeric, ensure_ascii=False)}")
        sentence += f"; to predict several numbers, add {AS_REGRESSION} {several}"
    if key == "label_column" and (splits := [name for name in found if name in table.columns and means_splits(table, name)]):
        sentence += f"; if {shown(splits[0])} names the splits, add {assignment('split_column', splits[0])}"
    return sentence


def without_values(table: Table) -> str:
    """Return a remark about the columns that have no values, or ""."""
    empty = [shown(name, 60) for name in table.where(lambda values: not cell_values.filled(values))]
    return f" ({listed(empty, MOST_LISTED)} {'have' if empty[1:] else 'has'} no values)" if empty else ""


def described(name: Name, values: Sequence[Any], key: str) -> str:
    return assignment(key, name) + (f" ({len({*map(str, cell_values.filled(values))})} different values)" if key == "label_column" else "")


def kind(table: Table, name: Name) -> str:
    """Describe the values of a column in a few words."""
    values = table.columns.get(name)
    if values is None:
        return "images"
    if (value := cell_values.fraction(values)) is not None:
        return f"numbers with fractions, such as {shown(value, 20)}"
    num_values = len(set(map(str, cell_values.filled(values))))
    if num_values > 2 and cell_values.numbers(values) is not None:
        return "numbers" if cell_values.are_numbers(values) else "numbers that count the rows"
    return "texts" if cell_values.is_text(values) else f"{num_values} different values" if num_values > 1 else "the same value in all rows"
