"""Predictions, confidences, losses and ranks of samples, computed from logits."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pipeline.core.refusal import Refusal

BLOCK_VALUES = 1 << 20

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Predictions:
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
        samples, num_classes = logits.shape
        assert targets.shape == (samples,)
        rows = max(1, BLOCK_VALUES // num_classes)
        blocks = [slice(start, start + rows) for start in range(0, samples, rows)]
        columns = zip(*(compute(logits[block].astype(np.float64), targets[block]) for block in blocks), strict=True)
        return cls(targets.astype(np.int64), *map(np.concatenate, columns))

    @classmethod
    def joined(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """Concatenate `parts`, such as the predictions for several batches.

        Raises Refusal if `parts` is empty, or if a confidence is NaN because a logit was not finite.
        """
        if not parts:
            raise Refusal("source.test: the test split is empty: write a share of the samples, above 0, such as `source.test: 0.2`")
        names = [field.name for field in fields(cls)]
        whole = cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        damaged = np.flatnonzero(np.isnan(whole.confidence))
        if len(damaged):
            raise Refusal(
                f"the model's logits are not finite for {len(damaged)} of {len(whole.targets)} samples (the first is sample {damaged[0]}): "
                "its training diverged; lower optimizer.learning_rate, or set a lower train.clip_norm, and train again"
            )
        return whole

    def most_confident_mistakes(self, most: int) -> Integers:
        """Return the numbers of at most `most` wrongly predicted samples, by descending confidence; ties are in sample order."""
        wrong = np.flatnonzero(~self.correct)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")][:most]


def compute(logits: Floats, targets: NDArray[np.integer]) -> tuple[Integers, Floats, Floats, Integers]:
    """Return four arrays (n,): for each row of `logits`, the predicted class, its confidence, the loss, and the rank of the actual class.

    `logits` is an array (n, classes), and `targets` (n,) are the actual classes. The rank is 0 if the prediction is correct. The confidence
    is NaN if a logit in the row is not finite.
    """
    finite = np.asarray(np.isfinite(logits).all(axis=1))
    logits = np.where(finite[:, None], logits, 0.0)
    every = np.arange(len(logits))
    predicted = logits.argmax(axis=1)
    peak = logits[every, predicted]
    # Subtract the maximum: the largest exponent is then 0, and the sum is between 1 and the number of classes.
    total = np.exp(logits - peak[:, None]).sum(axis=1)
    actual = logits[every, targets]
    likelier = logits > actual[:, None]
    equal_and_before = (logits == actual[:, None]) & (np.arange(logits.shape[1]) < targets[:, None])
    rank = (likelier | equal_and_before).sum(axis=1)
    return predicted, np.where(finite, 1 / total, np.nan), np.log(total) + (peak - actual), rank
