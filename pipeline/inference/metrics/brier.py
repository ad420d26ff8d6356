"""The Brier score: the squared distance of the probabilities from the actual class, summed over the classes; half of it with two classes."""

from pipeline.inference import measuring
from pipeline.inference.scores import Floats, Integers


class Metric(measuring.FromProbabilities):
    direction = "min"

    def of(self, classes: Integers, probabilities: Floats) -> float:
        from sklearn.metrics import brier_score_loss  # late: the import takes a second

        if self.num_outputs == 2:
            return float(brier_score_loss(classes, probabilities[:, 1], labels=[0, 1]))
        return float(brier_score_loss(classes, probabilities, labels=range(self.num_outputs)))
