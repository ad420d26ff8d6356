"""The mean negative logarithm of the probability of the actual class, in nats: `valid/loss`, with an interval in an evaluation."""

import numpy as np

from pipeline.inference import measuring
from pipeline.inference.scores import Floats, Integers


class Metric(measuring.FromProbabilities):
    direction = "min"

    def of(self, classes: Integers, probabilities: Floats) -> float:
        """Return the mean. scikit-learn would count a probability below 2e-16 as 2e-16; here only one below 2e-308 has a bound."""
        actual = probabilities[np.arange(len(classes)), classes]
        return float(-np.log(np.maximum(actual, np.finfo(np.float64).tiny)).mean())
