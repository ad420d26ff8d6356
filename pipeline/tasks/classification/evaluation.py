"""Scores, tables and figures of a classification on the test split."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.inputs.image.description import ImageInputs
from pipeline.params.evaluate import EvaluateSettings
from pipeline.reports import metrics, tables
from pipeline.reports.calibration import Calibration
from pipeline.reports.predictions import Predictions
from pipeline.spec import Spec
from pipeline.tasks.classification.targets import ClassTargets


class Evaluator:
    """Collects logits and class numbers batch by batch. To save memory, it keeps only the five values of `Predictions` for each sample."""

    def __init__(self, spec: Spec, settings: EvaluateSettings) -> None:
        assert isinstance(spec.targets, ClassTargets)
        settings.refuse_rank_beyond(spec.targets.num_classes)
        self.classes, self.settings = spec.targets.classes, settings
        self.has_images = isinstance(spec.inputs, ImageInputs)
        self.parts: list[Predictions] = []

    def add(self, logits: NDArray[np.float32], targets: NDArray[np.int64]) -> None:
        """Add the logits (n, classes) and the class numbers (n,) of the next samples."""
        assert logits.shape[1] == len(self.classes)
        self.parts.append(Predictions.of(logits, targets))

    @cached_property
    def predictions(self) -> Predictions:
        """Return the predictions of all samples. Raises Refusal if no samples were added, or if a logit is not finite."""
        return Predictions.joined(self.parts)

    def scores(self) -> dict[str, Any]:
        """Return the scores for `metrics/evaluate.json`."""
        return metrics.evaluate(self.predictions, self.classes, self.settings)

    def write(self, folder: Path, *, inputs: NDArray[np.uint8], history: Sequence[Mapping[str, object]]) -> None:
        """Write the tables and figures of confusion and reliability, a figure of the training history and, for images, a figure of the
        mistakes.

        `inputs` are the inputs of the test split; only the samples of that last figure are read. `history` has the rows of `history.csv`.
        """
        # imported late: matplotlib takes a second, which would delay an error message
        from pipeline.reports.figures import confusion, mistakes, reliability
        from pipeline.reports.figures import history as history_figure

        predictions, classes = self.predictions, self.classes
        calibration = Calibration.of(predictions.confidence, predictions.correct, self.settings.calibration_bins)
        targets, predicted = predictions.targets, predictions.predicted
        tables.write_confusion(folder / "confusion.csv", targets=targets, predicted=predicted, classes=classes)
        tables.write_reliability(folder / "reliability.csv", calibration)
        confusion.plot(folder / "confusion.png", targets=targets, predicted=predicted, classes=classes)
        reliability.plot(folder / "reliability.png", calibration)
        history_figure.plot(folder / "history.png", history)
        if self.has_images:
            mistakes.plot(folder / "mistakes.png", images=inputs, predictions=predictions, classes=classes, most=self.settings.mistakes)
