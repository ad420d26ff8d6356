"""Mean and deviation of a metric over trainings that repeat each other, and the interval of the mean."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from pipeline.inference.digits import rounded

LEVEL = 0.95
REPEATED = ("seed", "source.fold")
"""Keys whose values repeat one training, each by chance: none of them is the best, but they have a mean and a deviation."""
REPEATING = (REPEATED[0], "source.folds", REPEATED[1])
"""These keys, and the one that only makes sense with them."""


class Spread(NamedTuple):
    """`deviation` is the sample standard deviation, which divides by n - 1. `low` and `high` are the bounds of the interval of the mean."""

    mean: float
    deviation: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{rounded(self.mean)} ± {rounded(self.deviation)}"


def spread(values: Sequence[float], *, folds: int | None) -> Spread:
    """Return the spread of at least two values, one of each training.

    The interval is that of Student's t distribution at the confidence level LEVEL. With `folds`, the trainings are those of a
    cross-validation. Any two of them share most of their samples, so that their values resemble each other. The variance of the mean is then
    that of Nadeau and Bengio (2003): larger by the ratio of the samples of a validation and of its training.
    """
    from scipy.stats import t  # late: the import takes a second

    mean, deviation = fmean(values), stdev(values)
    shared = 1 / (folds - 1) if folds else 0.0
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * deviation * sqrt(1 / len(values) + shared)
    return Spread(mean, deviation, mean - half, mean + half)
