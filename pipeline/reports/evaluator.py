"""The interface that the stage evaluate needs from a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray


class Evaluator(Protocol):
    """Collects the outputs of a model batch by batch, and computes scores, tables and figures from them."""

    def add(self, outputs: NDArray[Any], targets: NDArray[Any], /) -> None:
        """Add the outputs and the targets of the next samples, (n, ...) each."""
        ...

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`: numbers, and mappings of numbers. They must include `loss` and `samples`."""
        ...

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Mapping[str, object]]) -> None:
        """Write tables and figures. `inputs` are the inputs of the test split, `history` has the rows of `plots/train/history.csv`."""
        ...
