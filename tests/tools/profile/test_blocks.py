"""The timer that benchmarks, `profile --speedup` and `profile --fit-batch` share."""

from functools import partial

from pipeline.tools.profile import trial


def test_blocks_alternate_their_order_and_the_device_is_awaited_only_around_them() -> None:
    log: list[str] = []
    steps = {name: (partial(log.append, name), count) for name, count in (("a", 2), ("b", 3))}
    seconds = trial.interleaved(steps, rounds=2, synchronize=partial(log.append, "wait"), before=lambda name: log.append(f"before {name}"))
    a, b = ["before a", "wait", "a", "a", "wait"], ["before b", "wait", "b", "b", "b", "wait"]
    assert log == [*a, *b, *b, *a]
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert all(each > 0 for each in (*seconds["a"], *seconds["b"]))


def test_seconds_are_those_of_a_step_and_ratios_those_of_a_round(monkeypatch) -> None:
    times = iter([0.0, 8.0, 10.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    nothing = lambda: None  # noqa: E731
    assert trial.interleaved({"a": (nothing, 4), "b": (nothing, 1)}, rounds=1, synchronize=nothing) == {"a": [2.0], "b": [2.0]}
    assert trial.ratios([1.0, 2.0, 9.0], [1.0, 1.0, 3.0]) == (2.0, 1.0, 3.0)
