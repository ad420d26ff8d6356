"""Names the numbers that a regression returns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.spec import Spec
from pipeline.core.untrusted import shown
from pipeline.tasks.regression.targets import NumberTargets

DIGITS, DIGITS_OF_SPREAD = 7, 4
"""A number on the terminal has the significant digits of float32, and more if the standard deviation of the targets would else have less than DIGITS_OF_SPREAD."""


@dataclass(frozen=True)
class Prediction:
    """The predicted numbers of one input, by column."""

    input: str
    numbers: dict[str, float]
    printed: dict[str, str]
    """The numbers for the terminal, rounded."""

    def record(self) -> dict[str, Any]:
        """Return the prediction for a line of JSON."""
        return {"input": self.input, **self.numbers}

    def cells(self) -> dict[str, str]:
        """Return the prediction for a row of a table on the terminal."""
        return {"input": shown(self.input)} | self.printed


class Predictor:
    """Makes predictions from the outputs of a model."""

    def __init__(self, spec: Spec, *, top_k: int) -> None:  # noqa: ARG002  # for classes
        assert isinstance(spec.targets, NumberTargets)
        self.std = spec.targets.std
        # a column called `input` must not take the place of the sample's name
        self.names = ["predicted input" if column == "input" else column for column in spec.targets.columns]

    def predictions(self, names: Sequence[str], outputs: NDArray[np.float64]) -> Iterator[Prediction]:
        """Yield the prediction for each input. `names` has the name of each input, and `outputs` (n, columns) has its numbers."""
        for name, row in zip(names, outputs.tolist(), strict=True):
            printed = map(rounded, row, self.std)
            yield Prediction(name, *(dict(zip(self.names, several, strict=True)) for several in (row, printed)))

    def columns(self, outputs: NDArray[np.float64]) -> dict[str, Any]:
        """Return the columns of a file."""
        return dict(zip(self.names, outputs.T, strict=True))


def rounded(number: float, std: float) -> str:
    """Return a number of targets whose standard deviation is `std`, such as 1699999751 for a deviation of 900."""
    exponents = [math.floor(math.log10(abs(value))) if value else 0 for value in (number, std)]
    return f"{number:.{min(17, max(DIGITS, exponents[0] - exponents[1] + DIGITS_OF_SPREAD))}g}"
