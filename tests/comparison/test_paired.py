"""A model is worse by its accuracy if that differs by more than chance, else by its loss; a test says so in words."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.comparison.paired import Scored, paired
from pipeline.comparison.rendering import sentence
from pipeline.reports.evaluator import SampleScores

COUNT = 200


def scored(correct: np.ndarray, loss: float, tokens: int = 1) -> Scored:
    noise = np.random.default_rng(int(correct.sum())).normal(0, 0.01, size=COUNT)
    samples = SampleScores((loss + noise) * tokens, correct.astype(np.int64), np.full(COUNT, tokens))
    model: Any = SimpleNamespace(name="model")
    return Scored(model, {}, samples)


def right(number: int) -> np.ndarray:
    return np.arange(COUNT) < number


@pytest.mark.parametrize(
    ("accuracy", "loss", "is_significant", "is_worse", "text"),
    [
        (100, 0.3, False, False, "No significant difference in accuracy: only A is correct for 0 samples, only B for 0"),
        (60, 0.3, True, True, "B is significantly worse than A in accuracy: only A is correct for 40 samples, only B for 0"),
        (140, 0.3, True, False, "B is significantly better than A in accuracy: only A is correct for 0 samples, only B for 40"),
        (140, 0.5, True, False, "The loss of B is significantly higher."),
        (60, 0.1, True, True, "The loss of B is significantly lower."),
        (102, 0.5, True, True, "The loss of B is significantly higher."),
        (98, 0.1, True, False, "The loss of B is significantly lower."),
    ],
)
def test_accuracy_decides_if_it_differs_and_else_the_loss(
    accuracy: int, loss: float, is_significant: bool, is_worse: bool, text: str
) -> None:
    test = paired(scored(right(100), 0.3), scored(right(accuracy), loss))
    assert (test.is_significant, test.second_is_worse) == (is_significant, is_worse)
    assert text in sentence(test, "A", "B")
    assert test.accuracy.difference == pytest.approx((accuracy - 100) / COUNT)


@pytest.mark.parametrize(
    ("loss", "is_worse", "text"), [(0.5, True, "B has a significantly higher loss than A"), (0.1, False, "lower loss")]
)
def test_the_loss_decides_between_language_models(loss: float, is_worse: bool, text: str) -> None:
    test = paired(scored(right(100), 0.3, tokens=8), scored(right(60), loss, tokens=8))
    assert (test.mcnemar, test.second_is_worse) == (None, is_worse)
    assert text in sentence(test, "A", "B")
    assert (test.loss.first, test.loss.second) == (pytest.approx(0.3, abs=0.01), pytest.approx(loss, abs=0.01)), "per token"
