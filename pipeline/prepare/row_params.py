"""The keys of sources whose samples are in tables: which files are read, and how; which columns have the labels, and for which task."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.core.registry import TASKS, USUAL_TASK
from pipeline.core.section import Column
from pipeline.prepare.params import Duplicates, SourceSettings
from pipeline.prepare.reading.labelled_tables import Labelled
from pipeline.prepare.reading.labels import LABELS, Labels
from pipeline.prepare.reading.streams import UTF8, Encoding

TABULAR = tuple(name for name in TASKS.names if TASKS.module(name).Targets.form in LABELS)
"""The tasks whose labels can be in tables."""
if TYPE_CHECKING:
    Task = str
else:
    Task = Literal[TABULAR]
LabelColumns = Column | Annotated[tuple[Column, ...], Field(min_length=1, max_length=1000)]


class RowSettings(SourceSettings):
    """The settings of sources whose samples are the rows of tables, or the lines of files of text."""

    untrusted: ClassVar[bool] = True
    duplicates: Duplicates
    table: Annotated[str, Field(min_length=1, max_length=255)] | None
    """Which of several tables or files in the folder `source.root` are read: the name of that of train, beside which those of other splits count,
    or a pattern such as `reviews_*.csv`. Null if only one set of them is there."""
    split_column: Column | None
    """The column with the split of each row: `train`, `valid` or `test`, or truth values in a column called, for example, `is_test`. Null if
    there is none."""
    encoding: Encoding
    """The encoding of the files, by its name for Python, such as `utf-8` or `gbk`. A byte order mark counts more. Parquet has its own."""
    on_corrupt: Literal["fail", "skip"]
    """How to handle a row or line without a label, or one of a source of texts with an empty text or with the names of the columns again: `fail`
    stops the stage and lists them; `skip` leaves them out, and says how many. A file that is one text must not be empty."""

    RECOMMENDED: ClassVar = {"table": None, "split_column": None, "encoding": UTF8, "on_corrupt": "fail"}


class LabelSettings(SourceSettings):
    """The settings of sources whose labels may be in the columns of tables."""

    task: Task
    """The kind of the labels: `classification` for one class a sample, `regression` for a number, or one in each of several columns, and
    `multi_label` for any number of labels a sample: a list in one column, or 0 and 1 in a column for each label."""
    label_column: LabelColumns | None
    """The column with the label: its name in the first line or, in a file without a line of names, its number from 1. For a regression, or for
    several labels a sample, it may be a list of columns; for classes, a list of columns of 0 and 1, where the name of that with the 1 is the label."""
    label_delimiter: Annotated[str, Field(min_length=1, max_length=10)] | None
    """The text between the labels of a sample in its cell, such as `;` in `red;blue`. Null if the cell is a list of JSON or Parquet, or if there is a column for
    each label."""

    positive_class: str | int | None
    """The positive one of two classes, such as `yes`: `average_precision`, `f1`, `precision` and `recall` are measured of it. Null for the second, or if there are more
    classes or none."""

    group_column: Column | None
    """The column whose rows with equal cells go to one split or fold, such as that of the patient or of the customer. It is no input. Null if there is none."""
    divide: Literal["random", "position"]
    """How missing splits are drawn: at `random`, class by class; or by `position`, for rows in the order of time: the last rows are the test split, and
    those before them the validation split."""

    RECOMMENDED: ClassVar = {"task": USUAL_TASK, "label_delimiter": None, "positive_class": None, "group_column": None, "divide": "random"}
    ADDED: ClassVar = {"task": USUAL_TASK, "label_delimiter": None, "positive_class": None, "group_column": None, "divide": "random"}

    @field_validator("label_column")
    @classmethod
    def refuse_repeated_labels(cls, columns: LabelColumns | None) -> LabelColumns | None:
        if isinstance(columns, tuple) and len(set(columns)) < len(columns):
            raise ValueError("has a column twice: remove one")
        return columns

    @field_validator("divide")
    @classmethod
    def refuse_two_ways(cls, divide: str, info: ValidationInfo) -> str:
        for key in ("folds", "group_column"):
            if divide == "position" and info.data.get(key) is not None:
                raise ValueError(f"must be `random` with source.{key}, which draws at random")
        return divide

    @field_validator("label_delimiter")
    @classmethod
    def refuse_undivided(cls, delimiter: str | None, info: ValidationInfo) -> str | None:
        several = "task" in info.data and TASKS.module(info.data["task"]).Targets.form == "labels"
        if delimiter is not None and (not several or isinstance(info.data.get("label_column"), tuple)):
            raise ValueError("is for lists of labels in one column, with `task: multi_label`: write null")
        return delimiter

    @property
    def label_columns(self) -> tuple[Column, ...]:
        if isinstance(self.label_column, tuple):
            return self.label_column
        return () if self.label_column is None else (self.label_column,)

    @property
    def labels(self) -> Labels:
        targets = TASKS.module(self.task).Targets
        return LABELS[targets.form](targets, self.label_columns, self.label_delimiter)

    def groups(self, labelled: Labelled) -> Callable[[], Iterable[bytes]] | None:
        """Return what yields the group of each row of train, if the rows have groups."""
        return partial(labelled.groups, self.group_column) if self.group_column is not None else None
