"""Names the labels that a model of several labels a sample predicts, with their probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.spec import Spec
from pipeline.core.untrusted import shown
from pipeline.tasks.classification.predict import columns_of, listed, rounded
from pipeline.tasks.multi_label.targets import DELIMITER, LabelTargets


@dataclass(frozen=True)
class Prediction:
    """The labels of one input, the most likely first, and the `top_k` most likely ones with their probabilities."""

    input: str
    labels: tuple[str, ...]
    top: tuple[tuple[str, float], ...]

    def record(self) -> dict[str, Any]:
        """Return the prediction for a line of JSON."""
        top = [{"label": label, "probability": probability} for label, probability in self.top]
        return {"input": self.input, "labels": list(self.labels), "top": top}

    def cells(self) -> dict[str, str]:
        """Return the prediction for a row of a table on the terminal."""
        return {"input": shown(self.input), "labels": shown(DELIMITER.join(self.labels)), "most likely": listed(self.top)}


class Predictor:
    """Makes predictions from probabilities. A label is predicted if its probability is above its threshold; the `top_k` most likely ones are listed in any case."""

    def __init__(self, spec: Spec, *, top_k: int) -> None:
        assert isinstance(spec.targets, LabelTargets)
        self.targets, self.labels, self.top_k = spec.targets, spec.targets.labels, min(top_k, len(spec.targets.labels))

    def predictions(self, names: Sequence[str], outputs: NDArray[np.float32]) -> Iterator[Prediction]:
        """Yield the prediction for each input. `names` has the name of each input, and `outputs` (n, labels) has its probabilities."""
        order, probabilities = self.ranked(outputs)
        for name, labels, best, likely in zip(names, self.predicted(outputs, order), order.tolist(), probabilities.tolist(), strict=True):
            top = tuple((self.labels[number], probability) for number, probability in zip(best[: self.top_k], likely, strict=True))
            yield Prediction(name, labels, top)

    def columns(self, outputs: NDArray[np.float32]) -> dict[str, Any]:
        """Return the columns of a file. The most likely labels have columns of their own, such as `label_1` and `probability_1`."""
        order, probabilities = self.ranked(outputs)
        labels = [DELIMITER.join(each) for each in self.predicted(outputs, order)]
        return {"labels": labels, **columns_of("label", self.labels, order[:, : self.top_k], probabilities, first="_1")}

    def ranked(self, outputs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers of all labels (n, labels), most likely first, and the probabilities of the `top_k` most likely ones."""
        order = np.argsort(-outputs, axis=1, kind="stable")
        return order, rounded(np.take_along_axis(outputs, order[:, : self.top_k], axis=1).astype(np.float64))

    def predicted(self, outputs: NDArray[np.float32], order: NDArray[np.int64]) -> Iterator[tuple[str, ...]]:
        """Yield the labels of each input, the most likely first."""
        for numbers, row in zip(order, outputs, strict=True):
            chosen = self.targets.predicted(row)
            yield tuple(self.labels[number] for number in numbers if chosen[number])
