"""The interfaces that a prediction needs from a kind of inputs and from a task, and the column of a table that holds the inputs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import Column
from pipeline.core.untrusted import shown
from pipeline.inference.batch import Batch
from pipeline.prepare.reading import streams, tables
from pipeline.prepare.reading.cells import Cells
from pipeline.prepare.reading.file_tree import Member
from pipeline.prepare.reading.parquet import MissingColumn
from pipeline.prepare.reading.tables import Block, Named
from pipeline.tools.params.table import Table

Reading = tuple[str, Any | Refusal]
"""The name of an input, and the input as a stored sample, the form in which `prepare` stores inputs, or the reason why it cannot be read."""


class Chunk(NamedTuple):
    """Rows of a table that are read together: their names (n,), their inputs as stored samples (n,), and the cells (n,) of columns to keep."""

    names: Sequence[str]
    samples: Sequence[Any]
    kept: Mapping[str, Cells]

    def parts(self, size: int) -> Iterator["Chunk"]:
        """Yield the rows, at most `size` at a time."""
        for start in range(0, len(self.names), size):
            chosen = slice(start, start + size)
            yield Chunk(self.names[chosen], self.samples[chosen], {name: cells[chosen] for name, cells in self.kept.items()})


class Reader(Protocol):
    """Reads inputs of one kind. Each kind that can be predicted has its own class `Reader` in `pipeline/inputs/KIND/predict.py`.

    A reader is built from the model's description of its inputs, such as the height, width and channels of images.
    """

    strings_are_paths: ClassVar[bool]
    """True if a string that is given in Python is a path; False if it is an input itself, such as a text."""

    def row(self, value: Any, /) -> Any:
        """Convert an input given in Python, or one row of an `.npy` file, to a stored sample, the form in which `prepare` stores inputs.

        Raises Refusal, with a reason and without a name, if the input does not fit the model.
        """
        ...

    def expected(self) -> str:
        """Describe the inputs that are sent to a model in MLflow, for people."""
        ...

    def example(self, stored: NDArray[Any], /) -> Any:
        """Return inputs that could be sent to a model in MLflow, one for each of the stored samples `stored`."""
        ...

    def values(self, given: Any, /) -> Any:
        """Return inputs that were sent to a model in MLflow as `row` takes them. Raises ValueError if they cannot be inputs."""
        ...

    def batch(self, rows: Sequence[Any], /) -> Batch:
        """Return one batch, the input of one forward pass, on the CPU. `rows` are the stored samples of the batch."""
        ...

    def note(self) -> str:
        """Return a remark about all inputs so far, such as how many were truncated; "" if there is none."""
        ...


@runtime_checkable
class FileReader(Reader, Protocol):
    """Reads inputs of which a file has one or several."""

    def read(self, file: Member, /) -> Iterable[Reading]:
        """Yield the inputs of one file, each with a name. Several threads may call this at once.

        If a single input cannot be read, a Refusal is yielded in its place. If nothing in the file can be read, Refusal is raised. The
        message of a Refusal contains the reason only, because the caller adds the name. Exceptions of `file.read()` are not caught.
        """
        ...


@runtime_checkable
class LineReader(FileReader, Protocol):
    """Reads inputs of which each is a line, or a field of a table. Files and standard input are read line by line, on one thread, so they may
    have any size.
    """

    def lines(self, name: str, stream: IO[bytes], /) -> Iterator[Reading]:
        """Yield the input of each line, called `name:LINE`, or the reason why it cannot be read."""
        ...

    def stored(self, places: Sequence[str], cells: Sequence[Cells], /) -> tuple[Sequence[Any], dict[int, Refusal]]:
        """Return the stored samples (n,) of the cells of a table, and the reason why by the number of each that cannot be read.

        `cells` has one column. `places` are the names of the rows.
        """
        ...


@runtime_checkable
class RowReader(Reader, Protocol):
    """Reads inputs of which each is a row of a table, with cells in several `columns`."""

    @property
    def columns(self) -> Sequence[str | int]:
        """Return the columns that the model reads, by name or by number."""
        ...

    def blocks(self, file: Member, columns: Named, /) -> Iterator[Block]:
        """Yield the rows of a file whose name does not say its format, with their cells in `columns`."""
        ...

    def lacking(self, column: object, /) -> Refusal:
        """Return what is said of a table without a column that the model reads."""
        ...

    def stored(self, places: Sequence[str], cells: Sequence[Cells], /) -> tuple[Sequence[Any], dict[int, Refusal]]:
        """Return the stored samples (n,) of rows with these cells of `columns`, and the reason why by the number of each that cannot be read.

        `places` are the names of the rows.
        """
        ...


class Prediction(Protocol):
    """The prediction for one input."""

    @property
    def input(self) -> str:
        """The name of the input."""
        ...

    def record(self) -> dict[str, Any]:
        """Return the prediction as a dict, to be written as one line of JSON."""
        ...

    def cells(self) -> dict[str, str]:
        """Return the prediction as the printable cells of one row of the table on the terminal, by the titles of the columns."""
        ...


class Predictor(Protocol):
    """Turns outputs into predictions. A task with predictions has its own class `Predictor` in `pipeline/tasks/TASK/predict.py`.

    It is built from the model's spec, which describes inputs and targets, and from `top_k`, the number of classes in a prediction.
    """

    def predictions(self, names: Sequence[str], outputs: NDArray[Any], /) -> Iterator[Prediction]:
        """Yield a prediction for each input, in order.

        `names` are the names of the inputs. `outputs` are the model's outputs for them, such as logits (n, classes), which are finite.
        """
        ...

    def columns(self, outputs: NDArray[Any], /) -> dict[str, Any]:
        """Return the columns of a CSV or Parquet file for such outputs: arrays of texts (valid as UTF-8) or numbers, one for each input."""
        ...


OPTION = "--column"
MOST_NAMED = 8


class TableColumn(NamedTuple):
    """`trained` is the column that the model file records, and `given` that which the user names. Each is None if there is none.

    `encoding` is that of tables of text.
    """

    trained: Column | None
    given: Column | None
    encoding: str = streams.UTF8

    def values(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield the number of the line of each row of a table, and its value in the column. Raises Refusal as `blocks` does."""
        column = self.chosen(path)
        return ((line, fields[column]) for line, fields in tables.records(self.blocks(path, [(OPTION, column)])))

    def blocks(self, path: Path, columns: Named) -> Iterator[Block]:
        """Yield the rows of a table with their cells in some columns, read as `prepare` reads them. The first is that of the inputs.

        Raises Refusal if no column is known, if the table cannot be read or lacks it, or if the first line may have the names of columns
        where the column is known by its number only.
        """
        column = columns[0][1]
        try:
            for at, block in enumerate(tables.blocks(path, columns, encoding=self.encoding)):
                if at == 0 and isinstance(column, int):
                    self.refuse_names(path, column, block.cells[column][0].as_py())
                yield block
        except MissingColumn as refusal:
            if self.given is not None or refusal.column != column:
                raise
            raise Refusal(f"{refusal} (the model reads the column {shown(column, 60)}; {OPTION} reads another one)") from None

    def refuse_names(self, path: Path, column: int, first: object) -> None:
        """Raise Refusal if the first line, which has the cell `first` in the column, may have the names of the columns."""
        if first == self.trained or (self.given is None and first_line_may_be_names(path, self.encoding)):
            remedy = f"if it has, add {OPTION} NAME; if it is an input, too, add {OPTION} {column}"
            raise Refusal(f"its first line may have the names of the columns, and the column is known by its number, {column}: {remedy}")

    def chosen(self, path: Path) -> Column:
        """Return the column. Raises Refusal with the columns of the table if neither the model file nor the user names one."""
        column = self.given if self.given is not None else self.trained
        if column is not None:
            return column
        table = Table.read(path, encoding=self.encoding)
        names = [shown(name, 60) for name in (*table.columns, *table.holds_images)]
        remedy = f"add {OPTION} NAME with one of its columns, {listed(names, MOST_NAMED)}"
        raise Refusal(f"is a table, and the model file does not say from which column its inputs are: {remedy}")


def parsed(written: str) -> Column:
    """Return a column as it is written on the command line: digits are its number."""
    return int(written) if written.isascii() and written.isdigit() else written


def first_line_may_be_names(path: Path, encoding: str) -> bool:
    try:
        return any(isinstance(name, str) for name in Table.read(path, encoding=encoding).columns)
    except Refusal:  # of a single line, nobody can tell
        return True
