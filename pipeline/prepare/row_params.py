"""The keys of sources whose samples are the rows of tables, or the lines of files of text: which files are read, and how."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.core.section import Column
from pipeline.prepare.params import Duplicates, SourceSettings
from pipeline.prepare.reading.streams import UTF8, Encoding


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
