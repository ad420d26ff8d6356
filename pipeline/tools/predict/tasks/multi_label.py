"""Names the labels that a model of several labels a sample predicts, with their probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.spec import Spec
from pipeline.core.tasks.multi_label import LabelTargets
from pipeline.core.untrusted import shown, storable
from pipeline.tools.predict.tasks.classification import listed, rounded

DELIMITER = ";"
"""Separates labels in a table."""


@dataclass(frozen=True)
class Prediction:
    """The labels of one input, the most likely first, and the `top_k` most likely ones with their probabilities."""

    input: str
    labels: tuple[str, ...]
    top: tuple[tuple[str, float], ...]

    def record(self) -> dict[str, Any]:
        """Return the prediction for a line of JSON."""
        top = [{"label": label, "probability": rounded(probability)} for label, probability in self.top]
        return {"input": self.input, "labels": list(self.labels), "top": top}

    def row(self) -> dict[str, Any]:
        """Return the prediction for a row of a file. The most likely labels have columns of their own, such as `label_1` and `probability_1`."""
        row: dict[str, Any] = {"input": storable(self.input), "labels": DELIMITER.join(self.labels)}
        for place, (label, probability) in enumerate(self.top, start=1):
            row |= {f"label_{place}": label, f"probability_{place}": rounded(probability)}
        return row

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
        for name, row in zip(names, outputs, strict=True):
            order, chosen = np.argsort(-row, kind="stable"), self.targets.predicted(row)
            top = tuple((self.labels[number], float(row[number])) for number in order[: self.top_k])
            yield Prediction(name, tuple(self.labels[number] for number in order if chosen[number]), top)
