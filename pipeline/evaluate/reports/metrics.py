"""Computes the scores in `metrics/evaluate.json`, and the calibration: the confidence of predictions compared with their accuracy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluate.reports.predictions import Floats, Integers, Predictions
from pipeline.inference import scores
from pipeline.inference.scores import share


@dataclass(frozen=True)
class Calibration:
    """Mean confidence and accuracy of predictions in each bin of the confidence.

    The range from 0 to 1 is divided into `num_bins` bins of equal width. A prediction belongs to bin i if its confidence is above
    i / num_bins and at most (i + 1) / num_bins. Each array has one value per bin, in ascending order; bins without predictions are left
    out. `centres` are the middles of the bins, and `samples` the numbers of predictions in them.
    """

    num_bins: int
    centres: Floats
    confidence: Floats
    """Mean confidence in each bin."""
    accuracy: Floats
    """Share of correct predictions in each bin."""
    samples: Integers

    @classmethod
    def of(cls, confidence: Floats, correct: NDArray[np.bool_], num_bins: int) -> "Calibration":
        """Return the calibration of n predictions with `num_bins` bins.

        `confidence` (n,) has the confidence of each prediction, above 0 and at most 1. `correct` (n,) is True for each correct prediction.
        """
        bins = np.clip(np.ceil(confidence * num_bins), 1, num_bins) - 1
        occupied, place, samples = np.unique(bins, return_inverse=True, return_counts=True)
        mean_confidence = np.bincount(place, weights=confidence) / samples
        accuracy = np.bincount(place, weights=correct) / samples
        return cls(num_bins, (occupied + 0.5) / num_bins, mean_confidence, accuracy, samples)

    @property
    def error(self) -> float:
        """Return the expected calibration error: the mean of |accuracy - confidence| over bins, weighted by samples (Guo et al., 2017)."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((gaps * self.samples).sum() / self.samples.sum())


def evaluate(
    predictions: Predictions, classes: tuple[str, ...], *, top_k: int, calibration_bins: int, confidence_level: float
) -> dict[str, Any]:
    """Return the scores of `predictions` by name. All scores are finite. There is no `top_k_accuracy` if it counts every sample as correct.

    `classes` are the class names. `top_k`, `calibration_bins` and `confidence_level` are the parameters with these names in the section
    `evaluate` of params.yaml.
    """
    correct = predictions.correct
    counts = count_classes(predictions.targets, predictions.predicted, len(classes))
    top = {"top_k_accuracy": float((predictions.rank < top_k).mean())} if top_k < len(classes) else {}
    return {
        "loss": float(predictions.loss.mean()),
        "accuracy": float(correct.mean()),
        **top,
        "macro_f1": scores.macro_f1(*counts),
        "expected_calibration_error": Calibration.of(predictions.confidence, correct, calibration_bins).error,
        "accuracy_interval": accuracy_interval(correct, confidence_level),
        "samples": len(correct),
        "per_class": score_classes(*counts, classes),
    }


def accuracy_interval(correct: NDArray[np.bool_], coverage: float) -> dict[str, float]:
    """Return `low` and `high` of the confidence interval of the accuracy (Clopper and Pearson, 1934), at the confidence level `coverage`.

    The interval has a width above 0 even if all predictions are correct, or all are wrong.
    """
    from scipy.stats import binomtest  # late: the import takes a second, which would delay a refusal

    interval = binomtest(int(np.count_nonzero(correct)), correct.size).proportion_ci(coverage, method="exact")
    return {"low": float(interval.low), "high": float(interval.high)}


def count_classes(targets: Integers, predicted: Integers, num_classes: int) -> tuple[Integers, Integers, Integers]:
    """Return for each class (classes,) how many samples have it, how many are predicted as it, and how many of these are correct."""
    support, named = np.bincount(targets, minlength=num_classes), np.bincount(predicted, minlength=num_classes)
    return support, named, np.bincount(targets[targets == predicted], minlength=num_classes)


def score_classes(support: Integers, named: Integers, hits: Integers, classes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and support (number of samples) of each class.

    A score that would divide by zero is 0: the recall of a class without samples, and the precision of a class that is never predicted.
    Such a class is included in the mean over all classes (macro F1).
    """
    columns = (share(hits, named), share(hits, support), scores.f1(support, named, hits))
    rows = zip(classes, *(column.tolist() for column in columns), support.tolist(), strict=True)
    return {name: {"precision": p, "recall": r, "f1": f1, "support": n} for name, p, r, f1, n in rows}
