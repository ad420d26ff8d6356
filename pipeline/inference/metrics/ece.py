"""The expected calibration error with 15 bins: how far confidence and accuracy are apart (Guo et al., 2017)."""

from pipeline.inference import measuring
from pipeline.inference.scores import Calibration, Floats, Integers

NUM_BINS = 15


class Metric(measuring.FromProbabilities):
    direction = "min"

    def of(self, classes: Integers, probabilities: Floats) -> float:
        return Calibration.of(probabilities.max(axis=1), probabilities.argmax(axis=1) == classes, NUM_BINS).error
