"""The interface that the stage evaluate needs from a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class SampleScores(NamedTuple):
    """The scores of each of n samples, for the comparison of two models on the same samples. Every array has the shape (n,).

    `loss` is the summed loss of the sample's targets in nats, and `correct` is how many of its `num_targets` targets were predicted. A
    sample of a classification has one target; a sample of a language model is a row of tokens.
    """

    loss: NDArray[np.float64]
    correct: NDArray[np.int64]
    num_targets: NDArray[np.int64]


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

    def sample_scores(self) -> SampleScores:
        """Return the scores of each sample, in the order of the test split. Raises Refusal for the same reasons as `scores`."""
        ...

    def write(self, folder: Path, *, inputs: NDArray[Any], history: Sequence[Mapping[str, object]], model: nn.Module) -> None:
        """Write tables and figures into `folder`.

        `inputs` are the inputs of the test split. `history` contains the rows of `plots/train/history.csv`. `model` is the model whose
        outputs were added.
        """
        ...
