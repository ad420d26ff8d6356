"""Reads a table to look at: up to MOST_ROWS of its rows, whether its first line has names, which of several is meant, and what only the user can say."""

import os.path
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from functools import lru_cache
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

from pipeline.core.raw_dataset import TRAIN
from pipeline.core.refusal import Refusal, listed
from pipeline.core.registry import USUAL_TASKS
from pipeline.core.untrusted import shown
from pipeline.prepare.reading import parquet, streams, table_formats, tables
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, words
from pipeline.prepare.reading.streams import looking
from pipeline.prepare.reading.table_sets import SeveralSets, find_tables, tables_in
from pipeline.tools.params.cell_values import are_image_names, filled, is_label, is_text, num_words, numbers, sampled
from pipeline.tools.params.commented_yaml import on_one_line

MOST_LISTED = 8
CLASSES, REGRESSION, SEVERAL = USUAL_TASKS.values()
WORDS = {
    "image_column": "the images",
    "label_column": "the labels",
    "text_column": "the texts",
    "split_column": "the splits",
    "target_column": "the texts to write",
}
"""The keys of the section `source` that name a column."""
Name = str | int
Given = Mapping[str, Any]
"""The keys of the section `source` that the user has set."""


class Question(Refusal):
    """Raised if data can be read, but only the user can say how: `questions` about the data in `path`, each with its answers."""

    def __init__(self, path: Path, *questions: str) -> None:
        super().__init__("; and ".join(questions), place=f"data={path}")
        self.path, self.questions = path, questions


def assignment(key: str, value: object) -> str:
    """Return the word of a command that gives a value to a key of the section `source`, in the quotes that YAML and the shell need."""
    return shlex.quote(f"source.{key}={on_one_line(str(value) if isinstance(value, Path) else value)}")


def ways(key: str, values: Iterable[object]) -> str:
    """Return the words of a command each of which gives one of `values` to a key of the section `source`."""
    return " or ".join(assignment(key, value) for value in [*values][:MOST_LISTED])


TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tokens", ".raw")
MOST_WORDS = 5
"""The name of a column has seldom more words. One of a question does, but then other columns have labels."""
MOST_FILES = 200
"""At most so many files of a folder of texts are read to find labels in their lines; they lie at equal distances among all."""
MOST_TABLES = 100
"""The most tables of a folder that are read: more may be annotations, a file for each sample."""
Values = dict[str, Any]
"""Values of the section `source` by key."""
Option = tuple[Values, Sequence[Path]]
"""The values that choose a table, and the parts of the table."""


class Table(NamedTuple):
    """Rows of a table by column. The columns have numbers from 1 if the file has no line of names."""

    columns: Mapping[Name, list[Any]]
    holds_images: frozenset[str] = frozenset()
    """The columns of a Parquet file with encoded images."""
    named_classes: frozenset[Name] = frozenset()
    """The columns of a Parquet file that store names for their numbers: labels for certain."""

    @property
    def has_images(self) -> bool:
        """True if a column holds images, or their names."""
        return bool(self.holds_images) or any(map(are_image_names, self.columns.values()))

    @classmethod
    def read(cls, *paths: Path, encoding: str = streams.UTF8, given: Given | None = None) -> Self:
        """Read up to MOST_ROWS rows of a table, or of the parts of one. The columns that `given` has decide whether the first line has names.

        Raises Refusal if one cannot be parsed, has no row, or has names where `given` has numbers, and Question if the first line may be names or a row.
        """
        parts = [read_part(path, encoding, given or {}) for path in paths]
        first = parts[0]
        joined = {name: [value for part in parts for value in part.columns.get(name, ())] for name in first.columns}
        return cls({name: sampled(values) for name, values in joined.items()}, first.holds_images, first.named_classes)

    @classmethod
    def of_fields(cls, path: Path, encoding: str) -> Self | None:
        """Return the fields in the lines of a file that is no table by its name, with numbers; None if it cannot be read so."""
        try:
            rows = looked(path, encoding, path.stat().st_mtime_ns) if path.is_file() else []
        except Refusal:  # as other readings say that a file cannot be read
            return None
        return cls({number: [*cells] for number, cells in enumerate(zip(*sampled(rows), strict=True), 1)}) if len(rows) > 1 else None

    def where(self, fits: Callable[[list[Any]], bool]) -> list[Name]:
        """Return the columns whose values fit."""
        return [name for name, values in self.columns.items() if fits(values)]


@lru_cache(4)
def looked(path: Path, encoding: str, changed_ns: int) -> list[Any]:  # noqa: ARG001  # when the file was changed
    """Return rows of a table of text: several sources look at the same ones."""
    return tables.look(path, encoding=encoding)


def read_part(path: Path, encoding: str, given: Given) -> Table:
    if table_formats.suffix_of(path) == parquet.SUFFIX:
        return read_parquet(path)
    found = looked(path, encoding, path.stat().st_mtime_ns) if path.is_file() else tables.look(path, encoding=encoding)
    if any(isinstance(fields, dict) for fields in found):
        rows = sampled([fields for fields in found if isinstance(fields, dict)])
        return Table({key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)})
    if len(found) < 2:
        raise Refusal(f"source.root: {shown(path)}: has no rows: add some")
    first, *others = found
    others = sampled([row for row in others if row != first] or others)  # joined files repeat a line of names, which `prepare` refuses
    columns = [[row[number] for row in others if number < len(row)] for number in range(len(first))]
    if names_are_first(path, first, columns, given):
        return Table({name: values for name, values in zip(first, columns, strict=True) if name})
    return Table({number: [name, *values] for number, (name, values) in enumerate(zip(first, columns, strict=True), 1)})


def read_parquet(path: Path) -> Table:
    with parquet.opened(path) as file:
        schema = file.schema_arrow
    known = [name for name in schema.names if schema.names.count(name) == 1]
    encoded = (name for name in known if parquet.is_image_column(schema.field(name).type))
    images = frozenset(name for name in encoded if parquet.holds_images(path, name))
    plain = [name for name in known if name not in images and parquet.is_plain(schema.field(name).type)]
    with looking():
        blocks = list(tables.blocks(path, [("", name) for name in plain])) if plain else []
    columns: dict[Name, list[Any]] = {name: sampled([cell for block in blocks for cell in block.cells[name].to_pylist()]) for name in plain}
    single = [name for name in plain if not parquet.is_list(schema.field(name).type)]
    return Table(columns, images, frozenset(name for name in single if parquet.class_names(path, name)))


def names_are_first(path: Path, first: Sequence[str], columns: Sequence[Sequence[str]], given: Given) -> bool:
    """Return True if `first`, the first line of the table `path`, has the names of `columns`: if `given` has one of them, or it seems so.

    Raises Refusal if `given` has the number of a column that has a name for certain, and Question if the line may also be a row.
    """
    wanted = [(key, name) for key in WORDS if key in given for name in (given[key] if isinstance(given[key], list) else [given[key]])]
    for key, number in wanted:
        if isinstance(number, int) and (numbers(first) is not None or has_other_cells(first, columns)) and has_names(first, columns):
            name = [str(number)] if str(number) in first else first[number - 1 : number]
            remedy = f"write the name of the column{f', {assignment(key, *name)}' if name else ''}"
            raise Refusal(f"the first line of {shown(path)} has the names of the columns", remedy=remedy, place=f"source.{key}={number}")
    if any(isinstance(name, int) for _, name in wanted):
        return False
    if len(first) > 2 and first[0] and not any(first[1:]):
        raise Refusal(f"source.root: {shown(path)}:1: has one cell, {shown(first[0], 40)}: remove what is above the names of the columns")
    if any(name in first for _, name in wanted):
        return True
    refuse_repeated_names(path, first, columns)
    if has_names(first, columns):
        return True
    [label, *others] = [name for name, values in zip(first, columns, strict=True) if is_label(values)] or ["", ""]
    texts = [name for name, values in zip(first, columns, strict=True) if is_text(values)]
    if others or label in ("", *texts) or not any(num_words(text) < 2 for text in texts):
        return False
    may_be = f"its first line may have the names of the columns, or be a row: {listed([shown(cell, 60) for cell in first], MOST_LISTED)}"
    raise Question(
        path,
        f"{may_be}; add {assignment('label_column', label)} if these are names, or {assignment('label_column', first.index(label) + 1)} if not",
    )


def refuse_repeated_names(path: Path, first: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """Raise Refusal if the first line has names for certain, and a name twice."""
    of_names = dict(zip(reversed(first), reversed(columns), strict=True))
    if repeated := next((name for at, name in enumerate(first) if name and name in first[:at]), ""):
        names, values = [*of_names], [*of_names.values()]
        if has_names(names, values) and has_other_cells(names, values):
            raise Refusal(f"source.root: {shown(path)}:1: has {shown(repeated, 60)} as the name of several columns: rename them")


def has_names(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return True if `first`, the first line, seems to have the names of `columns`: two or more, none repeated, and most no label of the rows below.

    One name may be a label, such as `hate` of rows that are `hate` or `none`, if another column with labels does not have its name. Numbers are
    names only if they count the columns, or if other columns tell names from values. A column without a name is one that a program added, such as the number of the row.
    """
    names = [name for name in first if name]
    if len(names) < 2 or len(set(names)) < len(names) or are_image_names(names[:1]):
        return False
    if counted := numbers(names):
        return names == [str(int(counted[0]) + position) for position in range(len(names))]
    are_labels = [name in values for name, values in zip(first, columns, strict=True) if is_label(values)]
    if not are_labels and any(numbers(first[at : at + 1]) and numbers(values) for at, values in enumerate(columns)):
        return has_other_cells(first, columns)
    if not are_labels and any(len(name.split()) > MOST_WORDS for name in names):
        return False
    return 2 * sum(are_labels) <= len(are_labels)


def has_other_cells(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return True if `first` has something else in a column of numbers or of the names of images."""
    return any(
        bool(filled(values))
        and any(fits(values) and not fits([name]) for fits in (are_image_names, lambda cells: numbers(cells) is not None))
        for name, values in zip(first, columns, strict=True)
        if name
    )


Attempt = Callable[[Path, Table, Given], Values | None]
"""Returns values for a table, given its path, its rows and the keys that the user has set; None if it is no such table."""


def kind_of(name: str) -> str:
    """Return the kind of a file: `image`, `table`, `text`, `array` or `other`."""
    suffixes = {"image": IMAGE_SUFFIXES, "text": TEXT_SUFFIXES, "array": (".npy", ".npz")}
    if table_formats.named_suffix(Path(name)):
        return "table"
    return next((kind for kind, several in suffixes.items() if name.lower().endswith(several)), "other")


def encoding_of(given: Given) -> str:
    return str(given.get("encoding", streams.UTF8))


def attempted(root: Path, options: Sequence[Option], given: Given, attempt: Attempt, why: str) -> Values | None:
    """Return the values that choose the only table that can be read, and what `attempt` returns for it; None if it returns None for each.

    Raises Question if several can be read, or could be if a question about them were answered: which of them to read, those that `why`, and
    these questions. Raises the first Refusal of `attempt` if none can.
    """
    if len(options) > MOST_TABLES:
        raise Refusal(f"data={root}: has {len(options)} tables: write as data=PATH the one to read, or call it train")
    answers, questions, refusals = dict[str, Values | None](), list[Question](), list[Refusal]()
    fitting = dict[Path, Table]()
    for chosen, paths in options:
        table = Table({})
        try:
            table = Table.read(*paths, encoding=encoding_of(given), given=given)
            if (values := attempt(paths[0], table, given)) is not None:
                answers[chooses(chosen, paths)] = {**chosen, **values}
                fitting[paths[0]] = table
        except Question as error:
            answers[chooses(chosen, paths)] = None
            fitting[paths[0]] = table
            questions.append(error)
        except Refusal as error:
            refusals.append(error)
    if len(answers) > 1:
        choices = [*answers]
        if "table" not in options[0][0] and are_alike(fitting.values()) and (pattern := pattern_of(root, [*fitting])):
            choices.append(f"{assignment('table', pattern)} to read all as one")
        which = f"{len(answers)} tables {why}: {'add' if 'table' in options[0][0] else 'write'} {' or '.join(choices)}"
        raise which_of(root, which, questions, fitting)
    if questions or (refusals and not answers):
        raise (*questions, *refusals)[0]
    return next(iter(answers.values()), None)


def which_of(root: Path, which: str, questions: Sequence[Question], found: Mapping[Path, Table]) -> Question:
    """Return the question `which` of the tables `found` to read, with the questions about each of them."""
    asked = defaultdict[str, list[str]](list)
    for question in questions:
        for each in question.questions:
            asked[each].append(question.path.name)
    details = [each if len(names) == len(found) else f"in {shown(', '.join(names))}, {each}" for each, names in asked.items()]
    *first, last = (which, *details)
    joined = "; if each has the rows of one class, join them into one table, with a column of the classes" * are_alike(found.values())
    return Question(root, *first, last + joined)


def are_alike(found: Iterable[Table]) -> bool:
    """Return True if all tables have the same columns."""
    return len({tuple(table.columns) for table in found}) == 1


def pattern_of(root: Path, paths: Sequence[Path]) -> str:
    """Return a pattern for the names of these files in the folder `root`, or "" if it matches others, too, or if they are not directly there."""
    names = [path.name for path in paths]
    first, last = (os.path.commonprefix(some) for some in (names, [name[::-1] for name in names]))  # noqa: RUF071  # of characters
    pattern = f"{escape(first)}*{escape(last[::-1])}"
    matching = [path for path in root.iterdir() if fnmatch(path.name, pattern)] if root.is_dir() else []
    return pattern if sorted(matching) == sorted(paths) else ""


def is_submission(name: str) -> bool:
    """Return True if a table shows only what the answers of a competition look like, such as `sample_submission.csv`."""
    return "submission" in words(PurePosixPath(name).stem)


def chooses(values: Values, paths: Sequence[Path]) -> str:
    """Return the word of a command that chooses a table, an Option."""
    if "table" not in values:
        return shlex.quote(f"data={values['root']}")
    name = "" if values["table"] else f" ({shown(paths[0].relative_to(values['root']))})"
    return assignment("table", values["table"]) + name


def train_tables(root: Path, given: Given) -> tuple[list[Option], bool]:
    """Return the tables of train in `root`, or every table if the names say nothing of splits; True if they do, or if `root` is a table.

    The key `table` chooses one of several sets of tables, or one in an archive.
    """
    try:
        of_splits = find_tables(root, given.get("table"))
    except SeveralSets as error:
        return [({"root": root, "table": escape(str(paths[0].relative_to(root)))}, paths) for paths in error.sets], True
    if of_splits:
        return [({"root": root}, of_splits[TRAIN])], True
    names = [str(path) for path in tables_in(root, given.get("table")) if not is_submission(path.name)]
    return [({"root": root / name} if root.is_dir() else {"root": root, "table": escape(name)}, [root / name]) for name in names], False
