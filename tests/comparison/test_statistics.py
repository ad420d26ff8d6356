"""The paired tests agree with statsmodels, and the bootstrap interval covers the true difference."""

import numpy as np
import pytest
from statsmodels.stats import contingency_tables

from pipeline.comparison import statistics
from pipeline.comparison.statistics import bootstrap, mcnemar


def predictions(both: int, only_first: int, only_second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.repeat([True, True, False, False], [both, only_first, only_second, neither])
    second = np.repeat([True, False, True, False], [both, only_first, only_second, neither])
    return first, second


@pytest.mark.parametrize("counts", [(50, 0, 0, 9), (50, 7, 7, 9), (50, 1, 9, 9), (50, 9, 1, 0), (0, 3, 21, 0), (5, 0, 24, 0)])
def test_few_discordant_samples_get_the_exact_p_value_of_statsmodels(counts: tuple[int, int, int, int]) -> None:
    both, one, other, neither = counts
    found = mcnemar(*predictions(*counts))
    expected = contingency_tables.mcnemar([[both, one], [other, neither]], exact=True)
    assert (found.only_first, found.only_second, found.exact) == (one, other, True)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-12)


@pytest.mark.parametrize("counts", [(50, 12, 13, 9), (900, 60, 40, 9), (10, 0, 25, 9), (9000, 300, 500, 200)])
def test_many_discordant_samples_get_the_corrected_p_value_of_statsmodels(counts: tuple[int, int, int, int]) -> None:
    both, one, other, neither = counts
    found = mcnemar(*predictions(*counts))
    expected = contingency_tables.mcnemar([[both, one], [other, neither]], exact=False, correction=True)
    assert not found.exact
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
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


def test_a_large_split_is_resampled_in_blocks_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    differences, weights = np.random.default_rng(3).normal(size=(2, 500)), np.ones(500)
    whole = bootstrap(differences, weights, 0.95)
    monkeypatch.setattr(statistics, "BLOCK_DRAWS", 3500)
    assert bootstrap(differences, weights, 0.95) == whole, "blocks change the memory alone"
    monkeypatch.setattr(statistics, "MOST_DRAWS", 1)
    for (low, high), (fewer_low, fewer_high) in zip(whole, bootstrap(differences, weights, 0.95), strict=True):
        assert (fewer_low, fewer_high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))
        assert (fewer_low, fewer_high) != (low, high)
