"""Paired tests: McNemar's test, and bootstrap intervals of the difference of two means over the same samples."""

from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from pipeline.seeding import generator

SEED = 1
RESAMPLES, FEWEST_RESAMPLES = 10_000, 1_000
MOST_DRAWS, BLOCK_DRAWS = 2 * 10**8, 2**22
"""MOST_DRAWS limits the draws of all resamples together, and so the number of resamples for a large split. BLOCK_DRAWS limits the draws that
are in memory at once."""
EXACT_BELOW = 25
"""With fewer discordant samples, McNemar's test is the exact binomial test, because the chi-squared distribution fits badly."""


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of whether two models are equally often correct, from the samples that only one of them predicted correctly.

    `only_first` and `only_second` count these samples. `p_value` is two-sided: from the binomial distribution if `exact`, else from the
    chi-squared distribution with continuity correction (Edwards, 1948).
    """

    only_first: int
    only_second: int
    p_value: float
    exact: bool


def mcnemar(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> McNemar:
    """Compare two models by whether each predicted each sample correctly: two arrays (n,)."""
    only_first, only_second = int(np.count_nonzero(first & ~second)), int(np.count_nonzero(second & ~first))
    discordant = only_first + only_second
    if discordant < EXACT_BELOW:
        from scipy.stats import binom  # late: the import takes a second

        p_value = min(1.0, 2 * float(binom.cdf(min(only_first, only_second), discordant, 0.5)))
        return McNemar(only_first, only_second, p_value, exact=True)
    statistic = (abs(only_first - only_second) - 1) ** 2 / discordant
    return McNemar(only_first, only_second, erfc(sqrt(statistic / 2)), exact=False)


def bootstrap(differences: NDArray[np.float64], weights: NDArray[np.float64], level: float) -> list[tuple[float, float]]:
    """Return the percentile interval (low, high) of each mean difference at the confidence level `level`, such as 0.95.

    `differences` (k, n) has the differences of k metrics for each of n samples, summed over the targets of the sample. `weights` (n,) is the
    number of these targets. The mean of a metric is the sum of its differences divided by the sum of the weights. Samples are drawn with
    replacement, the same ones for all metrics. The draws depend only on n, so that equal inputs give equal intervals on every machine.
    """
    count = differences.shape[1]
    resamples = min(RESAMPLES, max(FEWEST_RESAMPLES, MOST_DRAWS // count))
    draws, rows = generator(SEED, "paired bootstrap"), max(1, BLOCK_DRAWS // count)
    means = np.empty((len(differences), resamples))
    for start in range(0, resamples, rows):
        drawn = draws.integers(0, count, size=(min(rows, resamples - start), count))
        of_block = slice(start, start + len(drawn))
        means[:, of_block] = np.stack([each[drawn].sum(axis=1) for each in differences]) / weights[drawn].sum(axis=1)
    tail = (1 - level) / 2
    return [(float(low), float(high)) for low, high in np.quantile(means, [tail, 1 - tail], axis=1).T]
