"""Trainings for measurements make the steps of the training, and leave nothing behind. Their time and memory are measured."""

import threading
from functools import partial

import pytest

from pipeline.tools.profile import trial as trials
from pipeline.tools.profile.trial import Trial, stepping
from tests.train.engine import building
from tests.train.engine.building import same, weights


def test_a_trial_makes_the_steps_of_the_training_to_the_bit(train_params, prepared) -> None:
    changes = {"train.batch_size": 16, "train.micro_batch_size": 8, "schedule": {"name": "constant", "warmup_ratio": 0.0}}
    training = building.begin(train_params(changes | {"train.epochs": None, "train.steps": 10}), prepared)
    building.run(training)
    trial = Trial.of(train_params(changes), prepared, building.HERE)
    with stepping(trial) as reports:
        for _ in range(10):
            next(reports)
    assert same(weights(training.state), weights(trial.state))
    assert trial.clock.elapsed_s > 0


def test_a_trial_never_validates_and_cannot_save(params, prepared, capsys) -> None:
    trial = Trial.of(params, prepared, building.HERE, changes={"report_every_steps": 1})
    with stepping(trial) as reports:
        assert not any(name.startswith("valid/") for _ in range(60) for name in next(reports).metrics)
    assert not trial.save_now()
    assert not trials.NO_CHECKPOINTS.parent.is_dir()
    assert "train:" not in capsys.readouterr().out.replace("the checkpoint", "")


def test_weights_from_a_file_are_not_read(train_params, prepared) -> None:
    model = {"name": "mlp", "weights": "missing.safetensors", "width": 16, "depth": 2, "dropout": 0.0}
    Trial.of(train_params({"model": model}), prepared, building.HERE)


def test_the_reader_thread_of_a_streamed_split_ends_with_the_trial(params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.inference.batches.loader.RESIDENT_SHARE", 0.0)
    trial = Trial.of(params, prepared, building.HERE)
    with stepping(trial) as reports:
        next(reports)
        assert any(thread.name.startswith("reader") for thread in threading.enumerate())
    assert not any(thread.name.startswith("reader") for thread in threading.enumerate())
    assert not trial.train_split.resident


def test_blocks_alternate_their_order_and_the_device_is_awaited_only_around_them() -> None:
    log: list[str] = []
    steps = {name: (partial(log.append, name), count) for name, count in (("a", 2), ("b", 3))}
    seconds = trials.interleaved(steps, rounds=2, synchronize=partial(log.append, "wait"), before=lambda name: log.append(f"before {name}"))
    a, b = ["before a", "wait", "a", "a", "wait"], ["before b", "wait", "b", "b", "b", "wait"]
    assert log == [*a, *b, *b, *a]
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert all(each > 0 for each in (*seconds["a"], *seconds["b"]))


def test_seconds_are_those_of_a_step_and_ratios_those_of_a_round(monkeypatch) -> None:
    times = iter([0.0, 8.0, 10.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    nothing = lambda: None  # noqa: E731
    assert trials.interleaved({"a": (nothing, 4), "b": (nothing, 1)}, rounds=1, synchronize=nothing) == {"a": [2.0], "b": [2.0]}
    assert trials.ratios([1.0, 2.0, 9.0], [1.0, 1.0, 3.0]) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize("text", [None, "", "not numbers at all"])
def test_a_kernel_that_does_not_tell_gives_no_wait_for_a_cpu(monkeypatch, tmp_path, text: str | None) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(trials, "SCHEDULER_STATISTICS", path)
    assert trials.cpu_wait_s() == 0
