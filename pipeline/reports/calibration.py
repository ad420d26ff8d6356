"""Calibration: compares the confidence of predictions with their accuracy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.reports.predictions import Floats, Integers


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
