"""The train stage as a command: what it writes, how it is interrupted, and what has no influence on its bytes."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.environment import Paths
from pipeline.inference import model_file
from pipeline.inference.measuring import Measured
from pipeline.runs import observer
from pipeline.train import stage, training
from tests import project
from tests.project import RESULTS, digests


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    monkeypatch.chdir(project.make(tmp_path))
    assert main(["prepare"]) == 0
    return tmp_path


def interrupt_at(step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sends a signal while step `step` is reported."""
    save = training.Training.save_when_due

    def send(self, environment) -> None:
        if self.state.step == step:
            os.kill(os.getpid(), number)
        save(self, environment)

    monkeypatch.setattr(training.Training, "save_when_due", send)


WITHOUT_VALIDATION = "; no validation split: the last weights are exported"


def test_the_results_are_whole_and_say_what_decided_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    assert WITHOUT_VALIDATION not in capsys.readouterr().out
    _, manifest = model_file.load(folder / "models/model.safetensors")
    assert manifest.inference.model.name == "mlp"
    assert set(manifest.inputs) == {"data", "code", "lock"}
    assert {"device", "name", "threads", "libraries"} <= set(manifest.fingerprint)
    metrics = json.loads((folder / "metrics/train.json").read_text())
    assert metrics["steps"] == metrics["exported_step"] == 24
    assert "last" not in metrics
    history = (folder / "plots/train/history.csv").read_text().splitlines()
    assert history[0].startswith("step,learning_rate,train/objective")
    assert [line.split(",")[0] for line in history[1:]] == ["4", "8", "12", "16", "20", "24"]
    assert list((folder / ".pipeline/work").glob("*/step-*")) == []


def test_a_training_without_a_validation_split_says_so_in_its_first_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project.write_params(folder, {"source.valid": 0.0, "train.export_weights": "last"})
    assert main(["prepare"]) == main(["train"]) == 0
    first, *others = [line for line in capsys.readouterr().out.splitlines() if line.startswith("train: ")]
    assert first.endswith(WITHOUT_VALIDATION)
    assert not any("valid/" in line for line in others)


def test_a_metric_that_no_validation_determines_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(Measured, "values", lambda *_: {})
    project.write_params(folder, {"train.metrics": ["auroc"], "train.metric": "valid/auroc"})
    assert main(["train"]) == 0
    assert "; no validation determines valid/auroc\n" in capsys.readouterr().out


@pytest.mark.parametrize(("last", "better"), [(0.94, ""), (0.91, " (best: 0.9400 after step 30)")])
def test_the_best_validation_is_in_the_last_line_where_its_value_differs(last: float, better: str) -> None:
    settings = SimpleNamespace(metric="valid/accuracy", batch_size=8, patience=None)
    rows = [{"step": 30, "valid/accuracy": 0.94}, {"step": 40, "valid/accuracy": last}]
    progress = SimpleNamespace(best=None, best_value=0.94, best_step=30, rows=rows, ended_at=None)
    prepared = SimpleNamespace(train=range(32), splits={"valid"})
    training: Any = SimpleNamespace(
        params=SimpleNamespace(train=settings),
        state=SimpleNamespace(step=40),
        progress=progress,
        plan=SimpleNamespace(num_steps=40),
        prepared=prepared,
    )
    assert stage.result_line(training, Paths()).endswith(f"epoch 10.0, valid/accuracy {last:.4f}{better}")


@pytest.mark.parametrize(("number", "code", "step"), [(signal.SIGINT, 130, 7), (signal.SIGTERM, 143, 24)])
def test_an_interrupted_run_says_so_with_its_exit_code_and_goes_on_to_the_same_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys, number: int, code: int, step: int
) -> None:
    before = signal.getsignal(number)
    assert main(["train"]) == 0
    whole = digests(folder)
    for name in RESULTS:
        (folder / name).unlink()
    with monkeypatch.context() as patch:
        interrupt_at(step, number, patch)
        assert main(["train"]) == code
    assert signal.getsignal(number) == before
    assert not (folder / RESULTS[0]).exists()
    assert [path.name for path in (folder / ".pipeline/work").glob("*/step-*")] == [f"step-{step:012}.safetensors"]
    capsys.readouterr()
    assert main(["train"]) == 0
    assert f"resuming after step {step}" in capsys.readouterr().out
    assert digests(folder) == whole


def test_tracking_on_off_and_broken_give_equal_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert main(["train"]) == 0
    off = digests(folder)
    monkeypatch.setenv("PIPELINE_TRACKING", "true")
    monkeypatch.setenv("PIPELINE_TRACKING_WAIT_S", "0")
    assert main(["train"]) == 0
    assert digests(folder) == off
    assert main(["train"]) == 0
    assert len(list((folder / ".pipeline/journal").glob("*/events.jsonl"))) == 2, "a forced repeat of equal inputs is a new run"
    broken = folder / "elsewhere"
    broken.mkdir()
    (broken / ".pipeline").mkdir()
    (broken / ".pipeline/journal").write_text("a file where a folder should be")
    monkeypatch.setenv("DVC_ROOT", str(broken))
    assert main(["train"]) == 0
    assert digests(folder) == off
    assert "the run continues, but its journal is incomplete" in capsys.readouterr().err


class Unmade:
    def __init__(self, *_: object) -> None:
        raise RuntimeError("no observer")


class Raising:
    """Raises an exception whatever it is told."""

    def __init__(self, *_: object) -> None:
        pass

    def __getattr__(self, method: str) -> object:
        raise RuntimeError(method)


class Answering(Raising):
    """Draws random numbers and answers with nonsense, whatever it is told."""

    def __getattr__(self, method: str) -> object:
        def answer(*_: object) -> object:
            torch.rand(1)
            np.random.random()
            return method

        return answer


@pytest.mark.usefixtures("unplotted")
def test_an_observer_that_raises_or_answers_nonsense_changes_no_byte(folder: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    results = (*RESULTS, "metrics/evaluate.json")
    assert main(["train"]) == main(["evaluate"]) == 0
    whole = [files.digest(folder / name) for name in results]
    capsys.readouterr()
    for watching, warnings in ((Unmade, 2), (Raising, 2), (Answering, 0)):
        monkeypatch.setattr(observer, "StageObserver", watching)
        assert main(["train"]) == main(["evaluate"]) == 0
        assert [files.digest(folder / name) for name in results] == whole
        assert capsys.readouterr().err.count("warning: the stage continues") == warnings


def test_an_error_of_torch_that_the_user_can_mend_is_said_in_the_words_of_the_parameters(folder: Path, monkeypatch, capsys) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("Expected more than 1 value per channel when training, got input size [1, 4, 1, 1]")

    monkeypatch.setattr("pipeline.train.engine.fit.update", fail)
    assert main(["train"]) == 2
    assert "train.micro_batch_size: BatchNorm" in capsys.readouterr().err


def test_a_changed_parameter_starts_anew_and_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(7, signal.SIGTERM, patch)
        assert main(["train"]) == 143
    project.write_params(folder, {"optimizer.learning_rate": 0.002})
    capsys.readouterr()
    assert main(["train"]) == 0
    said = capsys.readouterr().out
    assert "has other inputs (optimizer.learning_rate): starting from the beginning" in said
    assert "from the beginning" in said


WSD = {"name": "wsd", "warmup_steps": 3, "decay_ratio": 0.2, "final_factor": 0.0}
CONSTANT = {"name": "constant", "warmup_ratio": 0.0}


class Killed(BaseException):
    """Ends a process without any of its handlers."""


def killed_at_a_checkpoint(source: Path, target: Path, copyfile=shutil.copyfile) -> None:
    if source.suffix == ".safetensors":
        raise Killed
    copyfile(source, target)


@pytest.mark.parametrize(
    ("schedule", "stops_after", "length", "continues_after"),
    [(WSD, None, 40, 19), (WSD, 17, 20, 16), (CONSTANT, 21, 40, 21)],
    ids=["longer, after the end", "shorter, after a stop", "constant"],
)
def test_a_training_of_another_length_continues_where_its_rates_agree_to_the_bytes_of_one_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, schedule: dict, stops_after: int | None, length: int, continues_after: int
) -> None:
    for name, value in {"TRACKING_MIRROR": "false", "CHECKPOINT_EVERY_STEPS": "8", "CHECKPOINT_EVERY_S": "0"}.items():
        monkeypatch.setenv(f"PIPELINE_{name}", value)
    monkeypatch.chdir(project.make(tmp_path, {"schedule": schedule}))
    assert main(["prepare"]) == 0
    with monkeypatch.context() as patch:
        if stops_after:
            interrupt_at(stops_after, signal.SIGTERM, patch)
        assert main(["train"]) == (143 if stops_after else 0)
    project.write_params(tmp_path, {"schedule": schedule, "train.steps": length})
    written = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed_at_a_checkpoint)
        with pytest.raises(Killed):
            main(["train"])
    for _ in range(2):
        assert main(["train"]) == 0
        written.append((capsys.readouterr().out, digests(tmp_path)))
        shutil.rmtree(tmp_path / ".pipeline/work")
    assert written[0][1] == written[1][1]
    _, continued, whole = sorted(tmp_path.glob(".pipeline/journal/*/events*"))
    steps = [
        [row["step"] for row in map(json.loads, path.read_text().splitlines()) if row["kind"] == "metrics"] for path in (continued, whole)
    ]
    assert steps[0] == steps[1], "its run has the rows before the checkpoint, too"
    assert f"same up to step {continues_after}: continuing after it" in written[0][0]
    assert f"resuming after step {continues_after}" in written[0][0]
    assert "from the beginning" in written[1][0]
