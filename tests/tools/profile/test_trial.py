"""Trainings for measurements make the steps of the training, and leave nothing behind."""

from pathlib import Path

import pytest
import torch

from pipeline.core.refusal import Refusal
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


def test_changes_that_do_not_fit_are_refused(params, prepared) -> None:
    with pytest.raises(Refusal, match=r"train\.lanes.*power of two"):
        Trial.of(params, prepared, building.HERE, changes={"lanes": 3})
    with pytest.raises(Refusal, match=r"train\.activation_checkpointing"):
        Trial.of(params, prepared, building.HERE, changes={"activation_checkpointing": True, "compile": "default"})


def test_the_reader_thread_of_a_streamed_split_ends_with_the_trial(params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("pipeline.inference.batches.loader.RESIDENT_SHARE", 0.0)
    trial = Trial.of(params, prepared, building.HERE)
    with stepping(trial) as reports:
        next(reports)
        assert any(thread.name.startswith("reader") for thread in threading.enumerate())
    assert not any(thread.name.startswith("reader") for thread in threading.enumerate())
    assert not trial.train_split.resident


@pytest.mark.parametrize(("budget_s", "step_s", "expected"), [(1.0, 0.1, 10), (1.0, 7.0, 1), (1.0, 1e-9, 2000)])
def test_the_number_of_steps_follows_their_duration(budget_s: float, step_s: float, expected: int) -> None:
    assert trials.steps_for(budget_s, step_s) == expected


def test_a_cpu_needs_no_synchronisation() -> None:
    trials.synchronize(torch.device("cpu"))
    assert Path("/dev/null").exists()
