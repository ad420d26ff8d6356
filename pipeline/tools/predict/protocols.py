"""The interfaces that a prediction needs from a kind of inputs and from a task."""

from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from pipeline.core.refusal import Refusal
from pipeline.inference.batch import Batch
from pipeline.prepare.reading.arrow_cells import Cells
from pipeline.prepare.reading.file_tree import Member

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

    def expected(self) -> str:
        """Describe the inputs that are sent to a model in MLflow, for people."""

    def example(self, stored: NDArray[Any], /) -> Any:
        """Return inputs that could be sent to a model in MLflow, one for each of the stored samples `stored`."""

    def values(self, given: Any, /) -> Any:
        """Return inputs that were sent to a model in MLflow as `row` takes them. Raises ValueError if they cannot be inputs."""

    def batch(self, rows: Sequence[Any], /) -> Batch:
        """Return one batch, the input of one forward pass, on the CPU. `rows` are the stored samples of the batch."""

    def note(self) -> str:
        """Return a remark about all inputs so far, such as how many were truncated; "" if there is none."""


@runtime_checkable
class FileReader(Reader, Protocol):
    """Reads inputs of which each is a file."""

    def read(self, file: Member, /) -> Any:
        """Return the input in a file as a stored sample. Several threads may call this at once.

        Raises Refusal with the reason only, because the caller adds the name. Exceptions of `file.read()` are not caught.
        """


@runtime_checkable
class LineReader(Reader, Protocol):
    """Reads inputs of which each is a line, or a field of a table. Files and standard input are read line by line, on one thread, so they may
    have any size.
    """

    encoding: str
    """That of files of lines without a byte order mark."""

    def lines(self, name: str, stream: "BufferedReader[Any]", /) -> Iterator[Reading]:
        """Yield the input of each line, called `name:LINE`, or the reason why it cannot be read."""

    def stored(self, places: Sequence[str], cells: Sequence[Cells], /) -> tuple[Sequence[Any], dict[int, Refusal]]:
        """Return the stored samples (n,) of the cells of a table, and the reason why by the number of each that cannot be read.

        `cells` has one column. `places` are the names of the rows.
        """


@runtime_checkable
class RowReader(Reader, Protocol):
    """Reads inputs of which each is a row of a table, with cells in several `columns`."""

    @property
    def columns(self) -> Sequence[str | int]:
        """Return the columns that the model reads, by name or by number."""

    def stored(self, places: Sequence[str], cells: Sequence[Cells], /) -> tuple[Sequence[Any], dict[int, Refusal]]:
        """Return the stored samples (n,) of rows with these cells of `columns`, and the reason why by the number of each that cannot be read.

        `places` are the names of the rows.
        """


class Prediction(Protocol):
    """The prediction for one input."""

    @property
    def input(self) -> str:
        """The name of the input."""

    def record(self) -> dict[str, Any]:
        """Return the prediction as a dict, to be written as one line of JSON."""

    def cells(self) -> dict[str, str]:
        """Return the prediction as the printable cells of one row of the table on the terminal, by the titles of the columns."""


class Predictor(Protocol):
    """Turns outputs into predictions. A task with predictions has its own class `Predictor` in `pipeline/tasks/TASK/predict.py`.

    It is built from the model's spec, which describes inputs and targets, and from `top_k`, the number of classes in a prediction.
    """

    def predictions(self, names: Sequence[str], outputs: NDArray[Any], /) -> Iterator[Prediction]:
        """Yield a prediction for each input, in order.

        `names` are the names of the inputs. `outputs` are the model's outputs for them, such as logits (n, classes), which are finite.
        """

    def columns(self, outputs: NDArray[Any], /) -> dict[str, Any]:
        """Return the columns of a CSV or Parquet file for such outputs: arrays of texts (valid as UTF-8) or numbers, one for each input."""
