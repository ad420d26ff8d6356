"""The interfaces that a prediction needs from a kind of inputs and from a task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, ClassVar, Protocol, runtime_checkable

from numpy.typing import NDArray

from pipeline.batch import Batch
from pipeline.io.reading.file_tree import Member
from pipeline.refusal import Refusal

Sample = tuple[str, Any]
"""The name of an input, and the input as a stored sample, the form in which `prepare` stores inputs."""
Reading = tuple[str, Any | Refusal]
"""The name of an input, and the input as a stored sample, or the reason why it cannot be read."""


class Reader(Protocol):
    """Reads one kind of inputs: the class `Reader` in `pipeline/inputs/KIND/reading.py`, built from the model's description of its inputs."""

    strings_are_paths: ClassVar[bool]
    """True if a string that is given in Python is a path; False if it is an input itself, such as a text."""
    noun: ClassVar[str]
    """What the inputs are, in the plural, for the progress bar and for messages."""

    def read(self, file: Member, /) -> Iterable[Reading]:
        """Yield the inputs of one file, each with a name. It is called on several threads.

        Raises Refusal with a reason, without the name, if nothing in the file can be read. A single input that cannot be read is yielded as
        a Refusal. What `Member.read` raises is passed on.
        """
        ...

    def row(self, value: Any, /) -> Any:
        """Convert an input given in Python, or one row of an `.npy` file, to a stored sample, the form in which `prepare` stores inputs.

        Raises Refusal, with a reason and without a name, if the input does not fit the model.
        """
        ...

    def batch(self, rows: Sequence[Any], /) -> Batch:
        """Return stored samples as the input of one forward pass, on the CPU."""
        ...


@runtime_checkable
class LineReader(Reader, Protocol):
    """Reads inputs of which each is a line. A file, and standard input, may then have any size: they are read line by line, on one thread."""

    def lines(self, name: str, stream: IO[bytes], /) -> Iterator[Reading]:
        """Yield the input of each line, called `name:LINE`, or the reason why it cannot be read."""
        ...

    def note(self) -> str:
        """Return a remark about all inputs so far, such as how many were truncated; "" if there is none."""
        ...


class Prediction(Protocol):
    """What a model answers for one input."""

    @property
    def input(self) -> str:
        """The name of the input."""
        ...

    def record(self) -> dict[str, Any]:
        """Return the prediction as a dict, to be written as one line of JSON."""
        ...

    def cells(self) -> tuple[str, ...]:
        """Return the prediction as the printable cells of one row of the table, in the order of `Predictor.columns`."""
        ...


class Predictor(Protocol):
    """Interprets the outputs for one task: the class `Predictor` in `pipeline/tasks/KIND/prediction.py`, built from spec and `top_k`."""

    def columns(self) -> Mapping[str, int | None]:
        """Return a dict from the name of each column of the table to its width in characters; None means the rest of the line."""
        ...

    def predictions(self, names: Sequence[str], outputs: NDArray[Any], /) -> Iterator[Prediction]:
        """Yield a prediction for each input, in order. Raises Refusal if an output is not finite."""
        ...
