"""Saves that are slow, or that the disk refuses: the loop does not wait, and the last good checkpoint stays."""

import errno
import itertools
import os
import threading
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from pipeline.train.engine.checkpoint import Checkpoints, Saver
from tests import project
from tests.laws.test_resuming import COMMON, CONVNET, EVERY_STEP
from tests.project import RESULTS, digests
from tests.train.engine.building import begin, run, same

CHANGES = {**COMMON, "model": CONVNET}


class Disk:
    """`Checkpoints.save` with a gate that stays shut until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        save = Checkpoints.save

        def slow(*arguments, **options) -> None:
            self.reached.set()
            assert self.opened.wait(timeout=300)
            save(*arguments, **options)

        monkeypatch.setattr(Checkpoints, "save", slow)


def test_the_loop_goes_on_while_a_checkpoint_is_written_and_the_file_is_of_the_moment_it_was_asked_for(
    train_params, prepared, tmp_path: Path, monkeypatch
) -> None:
    params = train_params(CHANGES)
    training, disk = begin(params, prepared, tmp_path), Disk(monkeypatch)
    reports = training.reports()
    next(reports)
    then = {name: tensor.clone() for name, tensor in (training.state.tensors() | training.progress.tensors()).items()}
    training.save()
    assert disk.reached.wait(timeout=300)
    steps = [report.step for report in itertools.islice(reports, 4)]
    assert steps == [2, 3, 4, 5], "the loop waited for the disk"
    assert training.saver.busy
    disk.opened.set()
    training.saver.wait()
    found = Checkpoints(tmp_path, kept=2).newest()
    assert found is not None
    assert same(found[0], then)
    assert found[1]["state"]["step"] == 1
    assert found[1]["progress"]["rows"] == []


def test_by_the_clock_a_save_is_left_out_while_one_is_written_and_by_steps_none_is(train_params, prepared, tmp_path, monkeypatch) -> None:
    training, disk = begin(train_params(CHANGES), prepared, tmp_path), Disk(monkeypatch)
    always = EVERY_STEP.model_copy(update={"checkpoint_every_steps": 0, "checkpoint_every_s": 1e-9})
    for _ in training.reports():
        training.save_when_due(always)
    assert training.saver.busy
    disk.opened.set()
    training.saver.wait()
    assert training.saver.saved_step == 1
    again = begin(train_params(CHANGES), prepared, tmp_path)
    for _ in again.reports():
        again.save_when_due(EVERY_STEP)
    again.saver.wait()
    assert again.saver.saved_step == 9


def refuse(number: int, monkeypatch: pytest.MonkeyPatch, *, after: int) -> list[Path]:
    """The disk refuses all files of tensors but the first `after`."""
    asked: list[Path] = []
    save = tensor_file.save

    def saving(path: Path, *rest) -> None:
        asked.append(path)
        if len(asked) > after:
            raise OSError(number, os.strerror(number), str(path))
        save(path, *rest)

    monkeypatch.setattr(tensor_file, "save", saving)
    return asked


def test_a_disk_that_refuses_is_said_and_the_training_goes_on_with_the_last_good_checkpoint(
    train_params, prepared, tmp_path: Path, monkeypatch, capsys
) -> None:
    params = train_params(CHANGES)
    whole, training = begin(params, prepared), begin(params, prepared, tmp_path)
    run(whole)
    refuse(errno.EIO, monkeypatch, after=3)
    for _ in training.reports():
        training.save_when_due(EVERY_STEP)
    training.saver.wait()
    assert same(whole.state.tensors(), training.state.tensors())
    path = tmp_path / "step-000000000004.safetensors"
    said = f"warning: {path}: the checkpoint cannot be written ({os.strerror(errno.EIO)}): the newest complete checkpoint is that of step 3; training continues"
    assert said in capsys.readouterr().out
    assert [path.name for path in training.saver.checkpoints.paths()] == [f"step-{step:012}.safetensors" for step in (2, 3)]


def test_a_mistake_of_ours_in_the_writing_is_said_once_with_its_place_and_hides_no_other_error(tmp_path: Path, capsys) -> None:
    saver = Saver(Checkpoints(tmp_path, kept=2))
    message = rf"^{tmp_path}: the checkpoint of step 1 cannot be written \(TypeError: .*not JSON serializable\): no checkpoint is complete yet; set PIPELINE_CHECK"
    with pytest.raises(Refusal, match=message), saver.finishing():
        saver.save(1, {"weight": torch.ones(2)}, {"no JSON": object()})
    saver.wait()
    saver.save(1, {"weight": torch.ones(2)}, {"no JSON": object()})
    with pytest.raises(Refusal, match="another error"), saver.finishing():
        raise Refusal("another error")
    assert "the checkpoint of step 1 cannot be written" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.setenv("PIPELINE_CHECKPOINT_EVERY_STEPS", "2")
    monkeypatch.chdir(project.run(project.make(tmp_path), "prepare"))
    return tmp_path


def test_only_a_model_that_cannot_be_written_fails_and_the_repetition_begins_at_the_last_checkpoint(folder, monkeypatch, capsys) -> None:
    assert main(["train"]) == 0
    whole = digests(folder)
    (folder / RESULTS[0]).unlink()
    with monkeypatch.context() as patch:
        asked = refuse(errno.ENOSPC, patch, after=12)
        assert main(["train"]) == 69
    assert [path.name for path in asked].index("model.safetensors") == 12
    said = capsys.readouterr().err
    assert (
        "models/model.safetensors: the disk is full, or has no inodes left (`df`, `df -i`): free some, then run the same command again"
        in said
    )
    assert not (folder / RESULTS[0]).exists()
    assert main(["train"]) == 0
    assert "resuming after step 24" in capsys.readouterr().out
    assert digests(folder) == whole
