"""A model is worse by its accuracy if that differs by more than chance, else by its loss; a test says so in words. Its exact interval agrees with
statsmodels, and its bootstrap interval covers the true difference.
"""

import re

import numpy as np
import pytest
from statsmodels.stats import contingency_tables, proportion

from pipeline.core.spec import Spec
from pipeline.evaluate.reports.metrics import SampleScores
from pipeline.tools.compare import comparing, models
from pipeline.tools.compare.comparing import sentence
from pipeline.tools.compare.models import bootstrap, exact_interval, incomparability, paired
from tests.specs import image_spec, text_spec

COUNT = 200
DIGITS, CATS = (image_spec(shape=(8, 8, 1), classes=names, mean=[0], std=[1]) for names in ("ab", "cd"))


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (DIGITS, image_spec(shape=(8, 8, 1), classes="ab", mean=[0.5], std=[0.5]), None),
        (DIGITS, CATS, r"one is for classification of image inputs .* \(a, b\), the other for classification of image inputs .* \(c, d\)"),
        (
            text_spec(classes="ab"),
            text_spec(),
            "one is for classification of text inputs .*, the other for language_modeling of text inputs .*",
        ),
        (text_spec(letters="abcd"), text_spec(letters="efgh"), "one is for (.*), the other for \\1 in another form, such as .*"),
    ],
)
def test_models_are_comparable_if_they_can_have_the_same_test_split(first: Spec, second: Spec, reason: str | None) -> None:
    found = incomparability(first, second)
    assert found is None if reason is None else re.fullmatch(reason, found or "")


def scored(correct: np.ndarray, loss: float, tokens: int = 1) -> SampleScores:
    noise = np.random.default_rng(int(correct.sum())).normal(0, 0.01, size=COUNT)
    return SampleScores((loss + noise) * tokens, correct.astype(np.int64), np.full(COUNT, tokens))


def right(number: int) -> np.ndarray:
    return np.arange(COUNT) < number


@pytest.mark.parametrize(
    ("accuracy", "loss", "is_significant", "is_worse", "text"),
    [
        (100, 0.3, False, False, "No significant difference in accuracy: only A is correct for 0 samples, only B for 0"),
        (140, 0.5, True, False, "better than A in accuracy: only A is correct for 0 samples, only B for 40 samples. The loss of B is sig"),
        (60, 0.1, True, True, "worse than A in accuracy: only A is correct for 40 samples, only B for 0 samples. The loss of B is sig"),
        (102, 0.5, True, True, "The loss of B is significantly higher."),
        (98, 0.1, True, False, "The loss of B is significantly lower."),
    ],
)
def test_accuracy_decides_if_it_differs_and_else_the_loss(
    accuracy: int, loss: float, is_significant: bool, is_worse: bool, text: str
) -> None:
    test = paired(scored(right(100), 0.3), scored(right(accuracy), loss))
    assert (test.is_significant, test.second_is_worse) == (is_significant, is_worse)
    lines = "\n".join(comparing.test_sections(test, "A", "B"))
    assert text in lines
    assert (lines.count("bootstrap"), lines.count("exact")) == (1, 1), "the loss, and the accuracy"
    assert test.accuracy.difference == pytest.approx((accuracy - 100) / COUNT)
    assert (accuracy in range(98, 103)) == (test.accuracy.low <= 0 <= test.accuracy.high), "the interval and the words say the same"


def test_the_squared_error_decides_between_regressions() -> None:
    first, second = (scored(right(100), error) for error in (3e6, 2e6))
    test = paired(first._replace(correct=None), second._replace(correct=None))
    assert sentence(test, "A", "B") == "The squared error of B is significantly lower."


def test_small_differences_keep_their_digits_and_counts_have_none() -> None:
    shown = [comparing.signed(value) for value in (0.0123456, -0.00001234, 0.0, 1.0, -2.0, -1e6 - 0.01)]
    assert shown == ["+0.0123", "-1.234e-05", "0", "+1", "-2", "-1000000"]
    assert [comparing.number(value) for value in (0.5, 0.00001234, 12345.6, 0.0, 1.0, 359.0)] == [
        *("0.5000", "1.234e-05", "12345.6000", "0.0000", "1.0000", "359")
    ]


def test_the_loss_decides_between_language_models() -> None:
    for loss, is_worse, text in ((0.5, True, "The loss of B is significantly higher."), (0.1, False, "lower.")):
        test = paired(scored(right(100), 0.3, tokens=8), scored(right(60), loss, tokens=8))
        assert (test.discordant, test.second_is_worse) == (None, is_worse)
        lines = "\n".join(comparing.test_sections(test, "A", "B"))
        assert text in lines
        assert (lines.count("bootstrap"), lines.count("exact")) == (2, 0)
        assert (test.loss.first, test.loss.second) == (pytest.approx(0.3, abs=0.01), pytest.approx(loss, abs=0.01)), "per token"


@pytest.mark.parametrize(("only_first", "only_second", "num_samples"), [(0, 5, 9), (0, 6, 9), (9, 1, 200), (60, 40, 1000)])
def test_the_exact_interval_is_that_of_statsmodels_and_excludes_0_if_the_exact_test_finds_a_difference(
    only_first: int, only_second: int, num_samples: int
) -> None:
    discordant = only_first + only_second
    low, high = exact_interval(only_first, only_second, num_samples, 0.95)
    share = np.array(proportion.proportion_confint(only_second, discordant, alpha=0.05, method="beta"))
    assert (low, high) == pytest.approx(tuple((2 * share - 1) * discordant / num_samples), abs=1e-12)
    p_value = contingency_tables.mcnemar([[0, only_first], [only_second, 0]], exact=True).pvalue
    assert (low > 0 or high < 0) == (p_value < 0.05)
    assert exact_interval(0, 0, num_samples, 0.95) == (0, 0)


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "RESAMPLES", 1000)
    random, covered, trials = np.random.default_rng(1), np.zeros(2), 300
    for _ in range(trials):
        count = 150
        tokens = random.integers(1, 9, size=count).astype(float)
        per_token = random.normal(0.3, 1.0, size=count)  # the mean over tokens is 0.3, whatever the lengths are
        skewed = random.exponential(0.5, size=count) - 0.2
        intervals = bootstrap(np.stack([per_token * tokens, skewed * tokens]), tokens, 0.95)
        covered += [low < 0.3 < high for low, high in intervals]
    assert (covered / trials > 0.90).all()
    assert (covered / trials < 0.985).all()


def test_the_interval_is_the_same_every_time_and_mirrors_when_the_models_are_swapped() -> None:
    differences, weights = np.random.default_rng(2).normal(size=(1, 80)), np.ones(80)
    ((low, high),) = bootstrap(differences, weights, 0.95)
    assert bootstrap(differences, weights, 0.95) == [(low, high)]
    ((mirrored_low, mirrored_high),) = bootstrap(-differences, weights, 0.95)
    assert (mirrored_low, mirrored_high) == (pytest.approx(-high), pytest.approx(-low))


def test_a_difference_that_is_equal_for_each_target_has_no_width_however_many_targets_the_samples_have() -> None:
    weights = np.arange(1.0, 30.0)
    ((low, high),) = bootstrap(0.5 * weights[None], weights, 0.95)
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.5))
