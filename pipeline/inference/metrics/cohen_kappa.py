"""Cohen's kappa: how far predictions and classes agree beyond chance. 1 is full agreement, 0 is that of chance."""

import math

import numpy as np

from pipeline.inference import measuring
from pipeline.inference.scores import Integers


class Metric(measuring.FromCounts):
    direction = "max"

    def of(self, support: Integers, predicted: Integers, hits: Integers) -> float:
        """Return kappa; NaN if every sample has, and is predicted as, one class."""
        samples, chance = int(support.sum()), float(support.astype(np.float64) @ predicted)
        remaining = samples**2 - chance
        return (samples * int(hits.sum()) - chance) / remaining if remaining else math.nan
