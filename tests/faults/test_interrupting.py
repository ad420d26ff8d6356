"""Signals during a validation, on a full disk and in other stages."""

import errno
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.train import training
from tests import project
from tests.faults.test_saving import refuse
from tests.project import RESULTS, digests

CONVNET = {"name": "convnet", "weights": None, "width": 4, "dropout": 0.2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"model": CONVNET, "train.micro_batch_size": 24, "train.export_weights": "best"}
    return project.run(project.make(tmp_path_factory.mktemp("trained") / "project", changes), "prepare", "train", PIPELINE_DEVICE="cpu")


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of a whole training's project, which a test interrupts and repeats."""
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    folder = shutil.copytree(trained, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def interrupt_in_validation(monkeypatch: pytest.MonkeyPatch, number: int, *, validation: int, batch: int) -> list[int]:
    """Send the signal while the given batch of the given validation (from 0) is scored; return the batches scored after it."""
    predict, validations, late = training.predict, [], []

    def predicting(model, batches, **more):
        validations.append(True)
        for at, found in enumerate(predict(model, batches, **more)):
            if len(validations) == validation + 1:
                if at == batch:
                    os.kill(os.getpid(), number)
                elif at > batch:
                    late.append(at)
            yield found

    monkeypatch.setattr(training, "predict", predicting)
    return late


def test_an_interrupted_validation_stops_at_once_and_is_repeated_first(folder: Path, monkeypatch, capsys) -> None:
    whole = digests(folder)
    (folder / RESULTS[0]).unlink()
    with monkeypatch.context() as patch:
        late = interrupt_in_validation(patch, signal.SIGINT, validation=1, batch=0)
        assert main(["train"]) == 130
    assert late == []
    step = 16
    assert f"step {step} is saved: the same command continues after it" in capsys.readouterr().out
    assert not (folder / RESULTS[0]).exists()
    assert main(["train"]) == 0
    output = capsys.readouterr().out
    assert f"resuming after step {step}" in output
    assert re.search(f"train: step {step} of 24, epoch [0-9.]+: ", output), "the interrupted validation is made again"
    assert digests(folder) == whole


def test_on_a_full_disk_an_interruption_ends_without_a_message_of_a_save(folder: Path, monkeypatch, capsys) -> None:
    whole = digests(folder)
    with monkeypatch.context() as patch:
        refuse(errno.ENOSPC, patch, after=0)
        interrupt_in_validation(patch, signal.SIGTERM, validation=0, batch=0)
        assert main(["train"]) == 143
    output = capsys.readouterr().out
    assert "the checkpoint cannot be written (No space left on device): no checkpoint is complete yet" in output
    assert "is saved" not in output
    assert "no checkpoint was saved: the same command starts from the beginning" in output
    assert main(["train"]) == 0
    assert digests(folder) == whole


@pytest.mark.parametrize("stage", ["prepare", "evaluate"])
def test_the_other_stages_end_at_once_with_the_code_of_the_signal_and_leave_no_draft(folder: Path, monkeypatch, capsys, stage: str) -> None:
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(files, "write_json", lambda *_: interrupt())
    assert main([stage]) == 143
    assert capsys.readouterr().err == "error: interrupted by SIGTERM\n"
    assert list(folder.rglob(".*.draft")) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
