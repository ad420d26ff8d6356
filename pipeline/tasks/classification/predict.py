"""Turns the logits of a classification into class names and probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.spec import Spec
from pipeline.core.untrusted import shown

WIDEST_CLASS = 30
DIGITS = 7
"""Significant digits of a probability in a record: those of float32."""


@dataclass(frozen=True)
class Prediction:
    """The most likely class of one input, and its softmax probability. `top` has the `top_k` most likely classes, most likely first."""

    input: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]

    def record(self) -> dict[str, Any]:
        """Return the prediction for a line of JSON."""
        top = [{"class": label, "probability": probability} for label, probability in self.top]
        return {"input": self.input, "class": self.label, "probability": self.probability, "top": top}

    def cells(self) -> dict[str, str]:
        """Return the prediction for a row of a table on the terminal."""
        others = {"next": listed(self.top[1:])} if len(self.top) > 1 else {}
        return {"input": shown(self.input), "class": shown(self.label, WIDEST_CLASS), "probability": f"{self.probability:.4f}"} | others


class Predictor:
    """Makes predictions from logits. Each prediction lists the `top_k` most likely classes, or all classes if there are fewer."""

    def __init__(self, spec: Spec, *, top_k: int) -> None:
        self.classes = spec.targets.output_names
        self.top_k = min(top_k, len(self.classes))

    def predictions(self, names: Sequence[str], logits: NDArray[np.float32]) -> Iterator[Prediction]:
        """Yield the prediction for each input. `names` has the name of each input, and `logits` (n, classes) has its logits."""
        best, probabilities = self.ranked(logits)
        for name, numbers, likely in zip(names, best.tolist(), probabilities.tolist(), strict=True):
            top = tuple((self.classes[number], probability) for number, probability in zip(numbers, likely, strict=True))
            yield Prediction(name, *top[0], top)

    def columns(self, logits: NDArray[np.float32]) -> dict[str, Any]:
        """Return the columns of a file. The next classes have columns of their own, such as `class_2` and `probability_2`."""
        return columns_of("class", self.classes, *self.ranked(logits))

    def ranked(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers of the most likely classes (n, top_k), most likely first, and their probabilities.

        Of two classes with equal logits, the one with the lower number counts as more likely.
        """
        rows = logits.astype(np.float64)
        exponentials = np.exp(rows - rows.max(axis=1, keepdims=True))
        best = np.argsort(-rows, axis=1, kind="stable")[:, : self.top_k]
        return best, rounded(np.take_along_axis(exponentials, best, axis=1) / exponentials.sum(axis=1, keepdims=True))


def columns_of(
    title: str, names: Sequence[str], best: NDArray[np.int64], probabilities: NDArray[np.float64], first: str = ""
) -> dict[str, Any]:
    """Return columns with the `names` of `best` (n, top_k), and their probabilities. The titles of the first end in `first`, of others in `_2` and so on."""
    columns, known = dict[str, Any](), np.array(names, object)
    for place in range(best.shape[1]):
        ending = f"_{place + 1}" if place else first
        columns |= {f"{title}{ending}": known[best[:, place]], f"probability{ending}": probabilities[:, place]}
    return columns


def listed(top: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{shown(label, WIDEST_CLASS)} {probability:.4f}" for label, probability in top)


def rounded(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities with DIGITS significant digits."""
    digits = DIGITS - 1 - np.floor(np.log10(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0))
    return np.rint(probabilities * 10.0**digits) / 10.0**digits
