"""The recall of the positive one of two classes: how many of its samples are predicted as it; NaN without such samples."""

import math

from pipeline.inference import measuring


class Metric(measuring.OfPositiveClass):
    direction = "max"

    def of_class(self, support: int, predicted: int, hits: int) -> float:  # noqa: ARG002  # the interface of all metrics
        return hits / support if support else math.nan
