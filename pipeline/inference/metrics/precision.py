"""The precision of the positive one of two classes: how many of the samples that are predicted as it have it; 0 if none is predicted."""

from pipeline.inference import measuring


class Metric(measuring.OfPositiveClass):
    direction = "max"

    def of_class(self, support: int, predicted: int, hits: int) -> float:  # noqa: ARG002  # the interface of all metrics
        return hits / max(predicted, 1)
