"""The Matthews correlation coefficient of predictions and classes, of any number of classes (Gorodkin, 2004)."""

import math

import numpy as np

from pipeline.inference import measuring
from pipeline.inference.scores import Integers


class Metric(measuring.FromCounts):
    direction = "max"

    def of(self, support: Integers, predicted: Integers, hits: Integers) -> float:
        """Return the coefficient; 0 if all samples have, or are predicted as, one class."""
        actual, named, samples = support.astype(np.float64), predicted.astype(np.float64), float(support.sum())
        spread = math.sqrt(samples**2 - actual @ actual) * math.sqrt(samples**2 - named @ named)
        return float((samples * hits.sum() - actual @ named) / spread) if spread else 0.0
