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


def test_blocks_alternate_their_order() -> None:
    log: list[str] = []
    blocks = {name: lambda name=name: float(len(log.append(name) or log)) for name in "ab"}
    assert trials.interleaved(blocks, 2) == {"a": [1.0, 4.0], "b": [2.0, 3.0]}
    assert log == ["a", "b", "b", "a"]


def test_seconds_are_those_of_a_step_and_the_device_is_awaited_only_around_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    times = iter([0.0, 8.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    monkeypatch.setattr(trials, "synchronize", lambda _: log.append("wait"))
    assert trials.time_block(partial(log.append, "step"), 4, building.HERE.device) == 2.0
    assert log == ["wait", *["step"] * 4, "wait"]


def test_a_block_has_as_many_steps_as_take_its_time_after_those_that_choose_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 0.2, 1.0, 9.0])
    monkeypatch.setattr(trials, "time_block", lambda *_: next(times))
    assert [trials.begin_block(lambda: None, building.HERE.device, 0.6) for _ in range(2)] == [3, 1]
