"""The mean negative logarithm of the probability of the actual class, in nats: `valid/loss`, with an interval in an evaluation."""

from typing import ClassVar

from pipeline.core.spec import Direction
from pipeline.inference import measuring
from pipeline.inference.scores import Floats, Integers


class Metric(measuring.FromProbabilities):
    direction: ClassVar[Direction] = "min"

    def of(self, classes: Integers, probabilities: Floats) -> float:
        from sklearn.metrics import log_loss  # late: the import takes a second

        return float(log_loss(classes, probabilities, labels=range(self.num_outputs)))
