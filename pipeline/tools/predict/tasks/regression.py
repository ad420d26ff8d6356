"""Names the numbers that a regression returns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.spec import Spec
from pipeline.core.tasks.regression import NumberTargets
from pipeline.core.untrusted import shown, storable

DIGITS = 7
"""Significant digits of a number: those of float32."""


@dataclass(frozen=True)
class Prediction:
    """The predicted numbers of one input, by column."""

    input: str
    numbers: dict[str, float]

    def record(self) -> dict[str, Any]:
        """Return the prediction for a line of JSON."""
        return {"input": self.input, **self.numbers}

    def row(self) -> dict[str, Any]:
        """Return the prediction for a row of a file."""
        return {"input": storable(self.input), **self.numbers}

    def cells(self) -> dict[str, str]:
        """Return the prediction for a row of a table on the terminal."""
        return {"input": shown(self.input)} | {name: f"{number:.{DIGITS}g}" for name, number in self.numbers.items()}


class Predictor:
    """Makes predictions from the outputs of a model."""

    def __init__(self, spec: Spec, *, top_k: int) -> None:  # noqa: ARG002  # for classes
        assert isinstance(spec.targets, NumberTargets)
        # a column called `input` must not take the place of the sample's name
        self.names = ["predicted input" if column == "input" else column for column in spec.targets.columns]

    def predictions(self, names: Sequence[str], outputs: NDArray[np.float32]) -> Iterator[Prediction]:
        """Yield the prediction for each input. `names` has the name of each input, and `outputs` (n, columns) has its numbers."""
        for name, row in zip(names, outputs, strict=True):
            yield Prediction(name, {column: float(f"{number:.{DIGITS}g}") for column, number in zip(self.names, row.tolist(), strict=True)})
