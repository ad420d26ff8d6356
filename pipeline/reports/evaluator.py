"""The interface that the stage evaluate needs from a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn


class Evaluator(Protocol):
    """Collects the outputs of a model batch by batch, and computes scores, tables and figures from them."""

    def add(self, outputs: Tensor, targets: Tensor, /) -> None:
        """Add the outputs and the targets of the next samples, (n, ...) each, both on the device of the model."""
        ...

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`: numbers, and mappings of numbers. They must include `loss` and `samples`."""
        ...

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Mapping[str, object]], model: nn.Module) -> None:
        """Write tables and figures.

        `inputs` are the inputs of the test split, `history` has the rows of `plots/train/history.csv`, and `model` is the scored model.
        """
        ...
