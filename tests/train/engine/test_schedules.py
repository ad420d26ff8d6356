"""Schedules: their ends, their peak, and that they never leave [0, 1]."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.train.engine.plan import factor, same_until
from pipeline.train.optimizer_params import ConstantSettings, DecaySettings, OneCycleSettings, WsdSettings

CONSTANT = ConstantSettings(name="constant", warmup_ratio=0.1)
LINEAR = DecaySettings(name="linear", warmup_ratio=0.1, final_factor=0.05)
COSINE = DecaySettings(name="cosine", warmup_ratio=0.1, final_factor=0.05)
ONE_CYCLE = OneCycleSettings(name="one_cycle", warmup_ratio=0.3, start_factor=0.04, final_factor=0.0)
WSD = WsdSettings(name="wsd", warmup_steps=4, decay_ratio=0.2, final_factor=0.1)


@given(st.integers(1, 500), st.data())
def test_a_factor_lies_between_nought_and_one(num_steps: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, num_steps - 1))
    for schedule in (CONSTANT, LINEAR, COSINE, ONE_CYCLE, WSD):
        assert 0 <= factor(step, num_steps, schedule) <= 1


def test_warm_up_rises_linearly_to_the_peak() -> None:
    assert [factor(step, 100, COSINE) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factor(99, 100, CONSTANT) == 1


def test_a_decay_ends_at_its_final_factor_and_is_half_way_in_the_middle() -> None:
    for schedule in (LINEAR, COSINE):
        assert factor(99, 100, schedule) == pytest.approx(0.05)
        assert factor(54, 100, schedule) == pytest.approx((1 + 0.05) / 2)
    assert factor(31, 100, LINEAR) == pytest.approx(1 - 0.95 * 22 / 90)


@given(st.integers(2, 500), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
@example(num_steps=2, warmup=0.8, final_factor=0.05)
@example(num_steps=100, warmup=0.999, final_factor=0.0)
def test_the_last_of_several_steps_has_the_final_factor(num_steps: int, warmup: float, final_factor: float) -> None:
    for schedule in (
        DecaySettings(name="linear", warmup_ratio=warmup, final_factor=final_factor),
        DecaySettings(name="cosine", warmup_ratio=warmup, final_factor=final_factor),
        OneCycleSettings(name="one_cycle", warmup_ratio=warmup, start_factor=0.04, final_factor=final_factor),
    ):
        assert factor(num_steps - 1, num_steps, schedule) == pytest.approx(final_factor)


def test_the_only_step_of_a_training_has_the_peak_rate() -> None:
    assert all(factor(0, 1, schedule) == 1 for schedule in (CONSTANT, LINEAR, COSINE, ONE_CYCLE))


def test_one_cycle_rises_from_its_start_to_the_peak_and_falls_to_its_end() -> None:
    factors = [factor(step, 100, ONE_CYCLE) for step in range(100)]
    assert factors[0] == pytest.approx(0.04)
    assert factors.index(max(factors)) == 29
    assert max(factors) == pytest.approx(1)
    assert factors[-1] == pytest.approx(0)


def test_wsd_rises_stays_and_falls_and_a_longer_training_differs_only_after_the_shorter_one_began_to_fall() -> None:
    rates = [factor(step, 20, WSD) for step in range(20)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, *[1.0] * 13, 0.775, 0.55, 0.325, 0.1])
    assert rates[:16] == [factor(step, 30, WSD) for step in range(16)]
    assert factor(16, 30, WSD) == 1


@pytest.mark.parametrize(("num_steps", "decay", "rates"), [(1, 0.9, [1]), (3, 0.0, [1, 1, 1]), (2, 0.9, [1, 0]), (3, 0.9, [1, 0.5, 0])])
def test_a_short_wsd_begins_at_the_peak_and_ends_at_its_final_factor(num_steps: int, decay: float, rates: list[float]) -> None:
    schedule = WsdSettings(name="wsd", warmup_steps=0, decay_ratio=decay, final_factor=0.0)
    assert [factor(step, num_steps, schedule) for step in range(num_steps)] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("schedule", "lengths", "last"),
    [
        (WSD, (20, 30), 16),
        (WSD, (30, 20), 16),
        (ConstantSettings(name="constant", warmup_ratio=0), (20, 30), 20),
        (ConstantSettings(name="constant", warmup_ratio=0), (21, 30), 20),
        (CONSTANT, (20, 30), 0),
        (COSINE, (20, 30), 0),
    ],
)
def test_trainings_of_two_lengths_are_the_same_while_their_rates_and_their_rows_are(schedule, lengths: tuple[int, int], last: int) -> None:
    """The last step of 21 is validated, and step 21 of 30 is not."""
    same = [step for step in range(31) if same_until(step, lengths, schedule, validate_every_steps=4)]
    assert same == list(range(last + 1))


def test_no_warm_up_begins_at_the_peak() -> None:
    for num_steps in (1, 2, 1000):
        for schedule in (
            ConstantSettings(name="constant", warmup_ratio=0),
            DecaySettings(name="linear", warmup_ratio=0, final_factor=0),
            DecaySettings(name="cosine", warmup_ratio=0, final_factor=0),
            OneCycleSettings(name="one_cycle", warmup_ratio=0, start_factor=0.1, final_factor=0),
        ):
            assert factor(0, num_steps, schedule) == 1
