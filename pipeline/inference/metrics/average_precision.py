"""The average precision, the area under the precision-recall curve: of the positive one of two classes, or the mean over the classes."""

from pipeline.inference import measuring
from pipeline.inference.scores import Floats, Integers


class Metric(measuring.FromProbabilities):
    direction = "max"
    forms = ("class", "labels")
    of_positive = True

    def of(self, classes: Integers, probabilities: Floats) -> float:
        from sklearn.metrics import average_precision_score  # late: the import takes a second

        return measuring.mean_of_classes(average_precision_score, classes, probabilities, self.positive)
