"""The balanced accuracy: the mean recall of the classes that have samples."""

from pipeline.inference import measuring
from pipeline.inference.scores import Integers


class Metric(measuring.FromCounts):
    direction = "max"

    def of(self, support: Integers, predicted: Integers, hits: Integers) -> float:  # noqa: ARG002  # the interface of all metrics
        present = support > 0
        return float((hits[present] / support[present]).mean())
