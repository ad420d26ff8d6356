"""Computes the scores in `metrics/evaluate.json`, and the calibration: the confidence of predictions compared with their accuracy."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.refusal import Refusal
from pipeline.inference import scores
from pipeline.inference.scores import share

DIVERGED = "its training diverged; lower optimizer.learning_rate, or set a lower train.clip_norm, and train again"

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def joined(parts: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Concatenate the arrays of several batches, each by its place in the parts."""
    return [np.concatenate(several) for several in zip(*parts, strict=True)]


def refuse_damaged(finite: NDArray[np.bool_]) -> None:
    """Raise Refusal if the outputs of a sample were not finite. `finite` (samples,) is True for those that were."""
    damaged = np.flatnonzero(~finite)
    if len(damaged):
        raise Refusal(
            f"the model's outputs are not finite for {len(damaged)} of {len(finite)} samples (the first is sample {damaged[0]}): {DIVERGED}"
        )


class Predictions(NamedTuple):
    """Predictions for n samples. Every array has the shape (n,).

    The classes of a sample are ranked by their logits, with the highest logit first. If two logits are equal, the class with the lower
    number is first.
    """

    targets: Integers
    predicted: Integers
    confidence: Floats
    """Softmax probability of the predicted class."""
    loss: Floats
    """Cross entropy in nats."""
    rank: Integers
    """Number of classes ranked above the target; 0 if the prediction is correct."""

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.equal(self.predicted, self.targets)

    @classmethod
    def of(cls, logits: NDArray[np.floating], targets: NDArray[np.integer]) -> "Predictions":
        """Compute predictions from logits (n, classes) and class numbers (n,), in float64.

        The confidence of a sample with a logit that is not finite is NaN.
        """
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        logits = np.where(finite[:, None], logits.astype(np.float64), 0.0)
        every = np.arange(len(logits))
        predicted = logits.argmax(axis=1)
        peak, actual = logits[every, predicted], logits[every, targets]
        # Subtract the maximum: the largest exponent is then 0, and the sum is between 1 and the number of classes.
        total = np.exp(logits - peak[:, None]).sum(axis=1)
        equal_and_before = (logits == actual[:, None]) & (np.arange(logits.shape[1]) < targets[:, None])
        rank = ((logits > actual[:, None]) | equal_and_before).sum(axis=1)
        loss = np.log(total) + (peak - actual)
        return cls(targets.astype(np.int64), predicted, np.where(finite, 1 / total, np.nan), loss, rank)

    @classmethod
    def joined(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """Concatenate `parts`, such as the predictions for several batches.

        Raises Refusal if a confidence is NaN because a logit was not finite.
        """
        whole = cls(*joined(parts))
        refuse_damaged(~np.isnan(whole.confidence))
        return whole

    def most_confident_mistakes(self, most: int) -> Integers:
        """Return the numbers of at most `most` wrongly predicted samples, by descending confidence; ties are in sample order."""
        wrong = np.flatnonzero(~self.correct)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")][:most]


class SampleScores(NamedTuple):
    """The scores of each of n samples, for the table of predictions and the comparison of two models. Every array has the shape (n,).

    `loss` is the summed loss of the sample's targets in nats, or their squared error if they are numbers. `correct` is how many of its `num_targets`
    targets were predicted, or None if targets are numbers, which are never just right or wrong. A sample of a classification has one target; a
    sample of a language model is a row of tokens. `answers` has further columns of the table by name, such as the predicted class.
    """

    loss: NDArray[np.float64]
    correct: NDArray[np.int64] | None
    num_targets: NDArray[np.int64]
    answers: Mapping[str, NDArray[Any]] = MappingProxyType({})


def accuracy_interval(correct: NDArray[np.bool_], coverage: float) -> dict[str, float]:
    """Return `low` and `high` of the confidence interval of the accuracy (Clopper and Pearson, 1934), at the confidence level `coverage`.

    The interval has a width above 0 even if all predictions are correct, or all are wrong.
    """
    from scipy.stats import binomtest  # late: the import takes a second, which would delay a refusal

    interval = binomtest(int(np.count_nonzero(correct)), correct.size).proportion_ci(coverage, method="exact")
    return {"low": float(interval.low), "high": float(interval.high)}


def count_classes(targets: Integers, predicted: Integers, num_classes: int) -> tuple[Integers, Integers, Integers]:
    """Return for each class (classes,) how many samples have it, how many are predicted as it, and how many of these are correct."""
    support, named = np.bincount(targets, minlength=num_classes), np.bincount(predicted, minlength=num_classes)
    return support, named, np.bincount(targets[targets == predicted], minlength=num_classes)


def score_classes(support: Integers, named: Integers, hits: Integers, classes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and support (number of samples) of each class.

    A score that would divide by zero is 0: the recall of a class without samples, and the precision of a class that is never predicted.
    A class without samples is left out of the mean over the classes (macro F1).
    """
    columns = (share(hits, named), share(hits, support), scores.f1(support, named, hits))
    rows = zip(classes, *(column.tolist() for column in columns), support.tolist(), strict=True)
    return {name: {"precision": p, "recall": r, "f1": f1, "support": n} for name, p, r, f1, n in rows}
