"""The F1 of the positive one of two classes."""

from pipeline.inference import measuring, scores


class Metric(measuring.OfPositiveClass):
    direction = "max"

    def of_class(self, support: int, predicted: int, hits: int) -> float:
        return scores.micro_f1(hits, predicted + support)
