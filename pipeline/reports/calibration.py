"""Whether a confidence of 80% is right four times in five."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.reports.predictions import Floats, Integers


@dataclass(frozen=True)
class Calibration:
    """The occupied ones among `num_bins` equal-width bins of confidence, ascending; bin i holds (i / num_bins, (i + 1) / num_bins]."""

    num_bins: int
    centres: Floats
    confidence: Floats
    """Mean of each bin."""
    accuracy: Floats
    """Share of right predictions in each bin."""
    samples: Integers

    @classmethod
    def of(cls, confidence: Floats, correct: NDArray[np.bool_], num_bins: int) -> "Calibration":
        """From (n,) confidences in (0, 1] and whether each prediction was right."""
        bins = np.clip(np.ceil(confidence * num_bins), 1, num_bins) - 1
        occupied, place, samples = np.unique(bins, return_inverse=True, return_counts=True)
        mean_confidence = np.bincount(place, weights=confidence) / samples
        accuracy = np.bincount(place, weights=correct) / samples
        return cls(num_bins, (occupied + 0.5) / num_bins, mean_confidence, accuracy, samples)

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between confidence and accuracy, each bin by its samples (Guo et al., 2017)."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((gaps * self.samples).sum() / self.samples.sum())
