"""Calibration: compares the confidence of predictions with their accuracy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.reports.predictions import Floats, Integers


@dataclass(frozen=True)
class Calibration:
    """Statistics of the non-empty bins among `num_bins` equal-width bins of confidence, in ascending order.

    Bin i holds confidences in (i / num_bins, (i + 1) / num_bins].
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
        """Bin confidences (n,) in (0, 1]; `correct` (n,) is True where the prediction is correct."""
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
