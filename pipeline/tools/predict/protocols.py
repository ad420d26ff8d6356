"""The interfaces that a prediction needs from a kind of inputs and from a task."""

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, ClassVar, Protocol, runtime_checkable

from numpy.typing import NDArray

from pipeline.core.refusal import Refusal
from pipeline.inference.batch import Batch
from pipeline.prepare.reading.file_tree import Member
from pipeline.prepare.reading.tables import Block

Sample = tuple[str, Any]
"""The name of an input, and the input as a stored sample, the form in which `prepare` stores inputs."""
Reading = tuple[str, Any | Refusal]
"""The name of an input, and the input as a stored sample, or the reason why it cannot be read."""


class Reader(Protocol):
    """Reads inputs of one kind. Each kind that can be predicted has its own class `Reader` in `pipeline/tools/predict/inputs/KIND.py`.

    A reader is built from the model's description of its inputs, such as the height, width and channels of images.
    """

    strings_are_paths: ClassVar[bool]
    """True if a string that is given in Python is a path; False if it is an input itself, such as a text."""

    def read(self, file: Member, /) -> Iterable[Reading]:
        """Yield the inputs of one file, each with a name. Several threads may call this at once.

        If a single input cannot be read, a Refusal is yielded in its place. If nothing in the file can be read, Refusal is raised. The
        message of a Refusal contains the reason only, because the caller adds the name. Exceptions of `file.read()` are not caught.
        """
        ...

    def row(self, value: Any, /) -> Any:
        """Convert an input given in Python, or one row of an `.npy` file, to a stored sample, the form in which `prepare` stores inputs.

        Raises Refusal, with a reason and without a name, if the input does not fit the model.
        """
        ...

    def batch(self, rows: Sequence[Any], /) -> Batch:
        """Return one batch, the input of one forward pass, on the CPU. `rows` are the stored samples of the batch."""
        ...

    def note(self) -> str:
        """Return a remark about all inputs so far, such as how many were truncated; "" if there is none."""
        ...


@runtime_checkable
class LineReader(Reader, Protocol):
    """Reads inputs of which each is a line, or a field of a table. Files and standard input are read line by line, on one thread, so they may
    have any size.
    """

    def lines(self, name: str, stream: IO[bytes], /) -> Iterator[Reading]:
        """Yield the input of each line, called `name:LINE`, or the reason why it cannot be read."""
        ...

    def field(self, place: str, value: Any, /) -> Any | Refusal:
        """Return a field of a table as a stored sample, or the reason why it cannot be read. `place` is its name."""
        ...


@runtime_checkable
class RowReader(Reader, Protocol):
    """Reads inputs of which each is a row of a table, with cells in several `columns`."""

    @property
    def columns(self) -> Sequence[str | int]:
        """Return the columns that the model reads, by name or by number."""
        ...

    def rows(self, name: str, blocks: Iterable[Block], /) -> Iterator[Reading]:
        """Yield the rows in `blocks`, those of a table, called `name:LINE`."""
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

    def row(self) -> dict[str, Any]:
        """Return the prediction as a row of a CSV or Parquet file: the same columns for all, each with a text (valid as UTF-8) or a number."""
        ...

    def cells(self) -> dict[str, str]:
        """Return the prediction as the printable cells of one row of the table on the terminal, by the titles of the columns."""
        ...


class Predictor(Protocol):
    """Turns outputs into predictions. A task with predictions has its own class `Predictor` in `pipeline/tools/predict/tasks/TASK.py`.

    It is built from the model's spec, which describes inputs and targets, and from `top_k`, the number of classes in a prediction.
    """

    def predictions(self, names: Sequence[str], outputs: NDArray[Any], /) -> Iterator[Prediction]:
        """Yield a prediction for each input, in order.

        `names` are the names of the inputs. `outputs` are the model's outputs for them, such as logits (n, classes), which are finite.
        """
        ...
