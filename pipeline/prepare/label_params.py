"""The keys of sources whose samples are in tables: which columns have the labels, and for which task."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.core.section import Column
from pipeline.prepare.params import SourceSettings
from pipeline.prepare.reading.labels import LABELS, Labels
from pipeline.prepare.reading.tables import LABEL, Columns

LabelColumns = Column | Annotated[tuple[Column, ...], Field(min_length=1, max_length=1000)]


class LabelSettings(SourceSettings):
    """The settings of sources whose labels may be in the columns of tables."""

    task: Literal["classification", "regression"]
    """What the labels are: `classification` for one class a sample, `regression` for a number, or one in each of several columns."""
    label_column: LabelColumns | None
    """The column with the label: its name in the first line or, in a file without a line of names, its number from 1. For a regression, it may be a list of
    columns; for classes, a list of columns of 0 and 1, where the name of that with the 1 is the label."""

    RECOMMENDED: ClassVar = {"task": "classification"}
    ADDED: ClassVar = {"task": "classification"}

    @property
    def label_columns(self) -> Columns:
        """Return the columns of the labels, by a key that begins with LABEL."""
        if isinstance(self.label_column, tuple):
            return {f"{LABEL}.{number}": column for number, column in enumerate(self.label_column)}
        return {} if self.label_column is None else {LABEL: self.label_column}

    @property
    def labels(self) -> Labels:
        return LABELS[self.task](list(self.label_columns.values()))
