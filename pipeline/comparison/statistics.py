"""Intervals of the difference of two models on the same samples: exact for accuracies of classes, else by a bootstrap."""

import numpy as np
from numpy.typing import NDArray

from pipeline.seeding import generator

SEED = 1
RESAMPLES, FEWEST_RESAMPLES = 10_000, 1_000
MOST_DRAWS, BLOCK_DRAWS = 2 * 10**8, 2**22
"""MOST_DRAWS limits the draws of all resamples together, and so the number of resamples for a large split. BLOCK_DRAWS limits the draws that
are in memory at once."""


def exact_interval(only_first: int, only_second: int, num_samples: int, level: float) -> tuple[float, float]:
    """Return the interval (low, high) of the difference of two accuracies, that of the second model minus that of the first.

    `only_first` and `only_second` count the discordant samples, those that only one of the models predicted correctly. The interval is that
    of Clopper and Pearson (1934) for the share of the second model in them, at the confidence level `level`, such as 0.95, scaled to the
    difference over all `num_samples` samples. It excludes 0 exactly if the exact test of McNemar has a p-value below 1 - `level`.
    """
    from scipy.stats import binomtest  # late: the import takes a second

    discordant = only_first + only_second
    if discordant == 0:
        return 0.0, 0.0
    share = binomtest(only_second, discordant).proportion_ci(level, method="exact")
    low, high = (float(2 * bound - 1) * discordant / num_samples for bound in (share.low, share.high))
    return low, high


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
