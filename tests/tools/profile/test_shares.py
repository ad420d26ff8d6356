"""How the time of a step is divided, given what was measured."""

import pytest

from pipeline.tools.profile.shares import Shares, Timed, Traced, shares


def seen(computing_s: float, copying_s: float = 0.0, stepping_s: float = 1.0) -> Traced:
    return Traced(computing_s, copying_s, stepping_s, [], {})


def divided(timed: Timed, traced: Traced, *, on_gpu: bool) -> tuple[float, ...]:
    found = shares(timed, traced, on_gpu=on_gpu)
    parts = (found.data, found.copying, found.computing, found.host, found.idle)
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= 0
    return parts


def test_a_gpu_that_is_never_idle_waits_for_nothing_although_the_host_waits_for_data() -> None:
    assert divided(Timed(1.0, 0.6, 0.4), seen(0.95, 0.05), on_gpu=True) == pytest.approx((0, 0.05, 0.95, 0, 0))


def test_an_idle_gpu_waits_for_data_as_long_as_the_host_does_and_else_for_the_host() -> None:
    assert divided(Timed(1.0, 0.3, 0.7), seen(0.2, 0.1), on_gpu=True) == pytest.approx((0.3, 0.1, 0.2, 0.4, 0))


def test_an_idle_gpu_whose_host_sleeps_is_idle() -> None:
    assert divided(Timed(1.0, 0.0, 0.25), seen(0.2), on_gpu=True) == pytest.approx((0, 0, 0.2, 0.2, 0.6))


def test_a_host_that_waits_for_a_cpu_is_not_idle() -> None:
    assert divided(Timed(1.0, 0.0, 0.25, 0.5), seen(0.2), on_gpu=True) == pytest.approx((0, 0, 0.2, 0.6, 0.2))


def test_kernels_that_took_longer_than_the_step_fill_it() -> None:
    assert divided(Timed(1.0, 0.0, 1.0), seen(1.2, 0.5), on_gpu=True) == pytest.approx((0, 0, 1, 0, 0))


def test_a_cpu_computes_the_same_fraction_as_under_the_profiler() -> None:
    """The profiler made the steps twice as long, and the operations too."""
    assert divided(Timed(1.0, 0.2, 0.8), seen(1.2, stepping_s=1.6), on_gpu=False) == pytest.approx((0.2, 0, 0.6, 0.2, 0))


def test_a_cpu_that_only_waits_for_data_computes_nothing() -> None:
    assert divided(Timed(1.0, 1.0, 0.0), seen(0.0, stepping_s=0.0), on_gpu=False) == pytest.approx((1, 0, 0, 0, 0))


def test_the_largest_share_is_named() -> None:
    assert Shares(0.1, 0.2, 0.3, 0.4, 0.0).largest == "host"
