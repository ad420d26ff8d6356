"""Scores of classes, computed from whole numbers of samples: what a validation and an evaluation of the same predictions report is equal."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def f1(support: Integers, predicted: Integers, hits: Integers) -> Floats:
    """Return the F1 of each class (classes,).

    The arguments (classes,) count the samples of each class, the samples that were predicted as this class, and the correct ones of these.
    A class without samples that is never predicted has an F1 of 0.
    """
    return share(2 * hits, predicted + support)


def macro_f1(support: Integers, predicted: Integers, hits: Integers) -> float:
    """Return the mean of the F1 of all classes, also of those without samples. The arguments are those of `f1`."""
    return float(f1(support, predicted, hits).mean())


def share(part: Integers, whole: Integers) -> Floats:
    """Return `part / whole` elementwise. Where `whole` is 0, `part` is 0 too, and the result is 0."""
    return part / np.maximum(whole, 1)
