"""The interface that the stage evaluate needs from a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn


class Evaluator(Protocol):
    """Collects the outputs of a model batch by batch, and computes scores, tables and figures from them."""

    def add(self, outputs: Tensor, targets: Tensor, /) -> None:
        """Add the next n samples: the model's outputs and the targets. Both have the shape (n, ...) and are on the model's device."""
        ...

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`. A score is a number, or a mapping whose values are scores.

        The scores must include `loss` and `samples`.
        """
        ...

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Mapping[str, object]], model: nn.Module) -> None:
        """Write tables and figures into `folder`.

        `inputs` are the inputs of the test split. `history` contains the rows of `plots/train/history.csv`. `model` is the model whose
        outputs were added.
        """
        ...
