"""The exact interval agrees with statsmodels, and the bootstrap interval covers the true difference."""

import numpy as np
import pytest
from statsmodels.stats import contingency_tables, proportion

from pipeline.tools.compare import models
from pipeline.tools.compare.models import bootstrap, exact_interval


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
