"""Computes the scores in `metrics/evaluate.json`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import class_scores
from pipeline.class_scores import share
from pipeline.reports.calibration import Calibration
from pipeline.reports.predictions import Integers, Predictions


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
        "macro_f1": class_scores.macro_f1(*counts),
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
    columns = (share(hits, named), share(hits, support), class_scores.f1(support, named, hits))
    rows = zip(classes, *(column.tolist() for column in columns), support.tolist(), strict=True)
    return {name: {"precision": p, "recall": r, "f1": f1, "support": n} for name, p, r, f1, n in rows}
