"""Scores that a validation and an evaluation compute alike: F1 from whole numbers of samples, the errors of numbers, and the loss of a language model per token, character and byte."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def f1(support: Integers, predicted: Integers, hits: Integers) -> Floats:
    """Return the F1 of each class (classes,).

    The arguments (classes,) count the samples of each class, the samples that were predicted as this class, and the correct ones of these.
    A class without samples has an F1 of 0, and counts in no mean.
    """
    return share(2 * hits, predicted + support)


def macro_f1(support: Integers, predicted: Integers, hits: Integers) -> float:
    """Return the mean of the F1 of the classes that have samples; NaN if none has. The arguments are those of `f1`."""
    found = f1(support, predicted, hits)[support > 0]
    return float(found.mean()) if len(found) else math.nan


def micro_f1(hits: float, named: float) -> float:
    """Return the F1 of all labels together, from the numbers of labels that are both predicted and actual, and of labels that are predicted plus those
    that are actual. It is 0 if there are none.
    """
    return 2 * hits / named if named else 0.0


def best_thresholds(targets: Integers, probabilities: Floats) -> list[float]:
    """Return for each label the probability above which predicting it has the highest F1; 0.5 for a label that no sample has.

    `targets` are 0 or 1, and have the shape (samples, labels) of `probabilities`. A threshold lies in the middle between two probabilities that it
    divides; of several, the highest is returned.
    """
    found = list[float]()
    for actual, values in zip(targets.T, probabilities.T, strict=True):
        order = np.argsort(-values, kind="stable")
        ranked, hits = values[order], np.cumsum(actual[order])
        ends = np.append(ranked[1:], 0.0)  # the highest probability that is not predicted
        scores = np.where(ranked > ends, 2 * hits / (np.arange(1, len(values) + 1) + hits[-1]), 0)
        best = int(scores.argmax())
        found.append(float(ranked[best] + ends[best]) / 2 if hits[-1] else 0.5)
    return found


def share(part: Integers, whole: Integers) -> Floats:
    """Return `part / whole` elementwise. Where `whole` is 0, `part` is 0 too, and the result is 0."""
    return part / np.maximum(whole, 1)


def sigmoid(logits: Floats) -> Floats:
    """Return the probability that each logit means, without overflow, and exact where it is small."""
    probabilities: Floats = np.exp(-np.logaddexp(0, -logits))
    return probabilities


@dataclass(frozen=True)
class Calibration:
    """Mean confidence and accuracy of predictions in each bin of the confidence.

    The range from 0 to 1 is divided into `num_bins` bins of equal width. A prediction belongs to bin i if its confidence is above
    i / num_bins and at most (i + 1) / num_bins. Each array has one value per bin, in ascending order; bins without predictions are left
    out. `centres` are the middles of the bins, and `samples` the numbers of predictions in them.
    """

    num_bins: int
    centres: Floats
    confidence: Floats
    """Mean confidence in each bin."""
    accuracy: Floats
    """Share of correct predictions in each bin."""
    samples: Integers

    @classmethod
    def of(cls, confidence: Floats, correct: NDArray[np.bool_], num_bins: int) -> "Calibration":
        """Return the calibration of n predictions with `num_bins` bins.

        `confidence` (n,) has the confidence of each prediction, above 0 and at most 1. `correct` (n,) is True for each correct prediction.
        """
        bins = np.clip(np.ceil(confidence * num_bins), 1, num_bins) - 1
        occupied, place, samples = np.unique(bins, return_inverse=True, return_counts=True)
        mean_confidence = np.bincount(place, weights=confidence) / samples
        accuracy = np.bincount(place, weights=correct) / samples
        return cls(num_bins, (occupied + 0.5) / num_bins, mean_confidence, accuracy, samples)

    @property
    def error(self) -> float:
        """Return the expected calibration error: the mean of |accuracy - confidence| over bins, weighted by samples (Guo et al., 2017)."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float((gaps * self.samples).sum() / self.samples.sum())


def rates(loss: float, num_tokens: float, *, characters: float, size_bytes: float) -> dict[str, float]:
    """Return the perplexity, the bits per character and the bits per byte of a text of `num_tokens` tokens.

    `loss` is the cross-entropy of all tokens in nats, summed. The text has `characters` characters and `size_bytes` bytes of UTF-8. If it
    has no characters, its bits per character are infinite; if it has no bytes, its bits per byte are.
    """
    bits = loss / math.log(2)
    return {
        "perplexity": perplexity(loss / num_tokens),
        "bits_per_character": bits / characters if characters else math.inf,
        "bits_per_byte": bits / size_bytes if size_bytes else math.inf,
    }


def perplexity(loss: float) -> float:
    """Return the perplexity for `loss`, the mean cross-entropy of a token in nats."""
    return math.exp(loss) if loss < math.log(1e300) else math.inf


class NumberSums(NamedTuple):
    """Sums over the samples of one column of numbers. All are standardised: so the sum of the targets is near 0, and their spread can be computed
    from their squares.
    """

    squared_errors: float
    absolute_errors: float
    targets: float
    squared_targets: float


def of_numbers(columns: Sequence[NumberSums], num_samples: float, std: Sequence[float]) -> dict[str, float]:
    """Return RMSE, MAE and R2: those of the column, or their means over several. `std` has the standard deviation of each column, in its own unit.

    R2 is 1 minus the squared errors divided by those of the mean of the targets. As in scikit-learn, it is 0 for targets that are all equal,
    or 1 if there are no errors.
    """
    each = [of_column(column, num_samples, unit) for column, unit in zip(columns, std, strict=True)]
    return {name: sum(found[name] for found in each) / len(each) for name in each[0]}


def of_column(column: NumberSums, num_samples: float, unit: float) -> dict[str, float]:
    spread = column.squared_targets - column.targets**2 / num_samples
    if spread <= 1e-12 * column.squared_targets:  # equal targets, but for rounding
        spread = 0.0
    explained = 1 - column.squared_errors / spread if spread > 0 else float(column.squared_errors == 0)
    return {
        "rmse": unit * math.sqrt(column.squared_errors / num_samples),
        "mae": unit * column.absolute_errors / num_samples,
        "r2": explained,
    }
