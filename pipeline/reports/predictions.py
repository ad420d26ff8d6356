"""Predictions, confidences, losses and ranks of samples, computed from logits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.refusal import Refusal

BLOCK_VALUES = 1 << 20

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Predictions:
    """Predictions for n samples; every array is (n,). Ties between logits go to the lower class number, in `predicted` and in `rank`."""

    targets: Integers
    predicted: Integers
    confidence: Floats
    """Softmax probability of the predicted class."""
    loss: Floats
    """Cross entropy in nats."""
    rank: Integers
    """Number of classes ranked above the target; 0 where the prediction is correct."""

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.equal(self.predicted, self.targets)

    @classmethod
    def of(cls, logits: NDArray[np.floating], targets: NDArray[np.integer]) -> "Predictions":
        """Compute predictions from logits (n, classes) and class numbers (n,), in float64.

        Raises Refusal where there are no samples or a logit is not finite.
        """
        samples, num_classes = logits.shape
        assert targets.shape == (samples,)
        if samples == 0:
            raise Refusal("source.test: the test split is empty: there is nothing to evaluate; keep a share for it, such as `test: 0.2`")
        assert 0 <= targets.min() <= targets.max() < num_classes
        refuse_not_finite(logits)
        rows = max(1, BLOCK_VALUES // num_classes)
        blocks = [slice(start, start + rows) for start in range(0, samples, rows)]
        columns = zip(*(read(logits[block].astype(np.float64), targets[block]) for block in blocks), strict=True)
        return cls(targets.astype(np.int64), *map(np.concatenate, columns))


def refuse_not_finite(logits: NDArray[np.floating]) -> None:
    damaged = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(damaged):
        raise Refusal(
            f"the model's logits are not finite for {len(damaged)} of {len(logits)} samples (the first is sample {damaged[0]}): "
            "its training diverged; lower optimizer.learning_rate, or set or lower train.clip_norm, and train again"
        )


def read(logits: Floats, targets: NDArray[np.integer]) -> tuple[Integers, Floats, Floats, Integers]:
    """Return prediction, confidence, loss and rank of a block of samples, each (n,)."""
    every = np.arange(len(logits))
    predicted = logits.argmax(axis=1)
    peak = logits[every, predicted]
    # Subtract the maximum: the largest exponent is then 0, and the sum lies between 1 and the number of classes.
    total = np.exp(logits - peak[:, None]).sum(axis=1)
    actual = logits[every, targets]
    likelier = logits > actual[:, None]
    equal_and_before = (logits == actual[:, None]) & (np.arange(logits.shape[1]) < targets[:, None])
    rank = (likelier | equal_and_before).sum(axis=1)
    return predicted, 1 / total, np.log(total) + (peak - actual), rank
