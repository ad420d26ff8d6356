"""The area under the ROC curve: of the second of two classes, or the mean over the classes, each against all others."""

from pipeline.inference import measuring
from pipeline.inference.scores import Floats, Integers


class Metric(measuring.FromProbabilities):
    direction = "max"
    forms = ("class", "labels")

    def of(self, classes: Integers, probabilities: Floats) -> float:
        from sklearn.metrics import roc_auc_score  # late: the import takes a second

        return measuring.mean_of_classes(roc_auc_score, classes, probabilities)
