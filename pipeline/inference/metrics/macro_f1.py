"""The macro F1: the mean of the F1 of all classes."""

from pipeline.inference import measuring, scores
from pipeline.inference.scores import Integers


class Metric(measuring.FromCounts):
    direction = "max"
    forms = ("class", "labels")

    def of(self, support: Integers, predicted: Integers, hits: Integers) -> float:
        return scores.macro_f1(support, predicted, hits)
