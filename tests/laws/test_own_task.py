"""A fork adds a task and inputs by new files alone, which the stages then train, score and verify; no file that exists changes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.yaml_document import Document
from tests import project
from tests.imports import TOP
from tests.repository import call, run

FORK = Path(__file__).parent / "fork/pipeline"
CHANGES: dict[str, Any] = {
    "source": {"name": "plane", "root": "data/README.md", "valid": 0.2, "test": 0.2, "seed": 1},
    "model": {"name": "line", "weights": None},
    "augment": None,
    "evaluate": {"name": "regression", "batch_size": 32, "test_time_augmentation": "none"},
    "train.metric": "valid/mean_absolute_error",
    "train.label_smoothing": 0.0,
    "train.steps": 200,
    "train.report_every_steps": 20,
    "train.validate_every_steps": 40,
    "optimizer.learning_rate": 0.1,
}


def digits_augment() -> dict[str, Any]:
    augment: dict[str, Any] = Document.read(TOP / "presets/digits.yaml").data["augment"]
    return augment


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project.make(tmp_path_factory.mktemp("fork"), CHANGES, copy=True)
    shutil.copytree(FORK, folder / "pipeline", dirs_exist_ok=True)
    for stage in ("prepare", "train", "evaluate"):
        call(folder, "python", "-m", "pipeline", stage, PIPELINE_TRACKING="false")
    return folder


def test_the_spec_has_the_kinds_of_the_fork(fork: Path) -> None:
    spec = json.loads((fork / "data/prepared/spec.json").read_text())["spec"]
    assert spec["inputs"]["kind"] == "points"
    assert 4.9 < spec["inputs"]["largest"] <= 5
    assert spec["targets"] == {"kind": "regression"}


def test_it_learns_and_its_metrics_are_reported(fork: Path) -> None:
    header, *rows = (fork / "plots/train/history.csv").read_text().splitlines()
    names = header.split(",")
    assert {"train/mean_absolute_error", "valid/loss", "valid/mean_absolute_error"} <= set(names)
    errors = [float(row.split(",")[names.index("valid/mean_absolute_error")]) for row in rows if row.split(",")[-1]]
    assert errors[-1] < errors[0] / 5
    best = json.loads((fork / "metrics/train.json").read_text())["best"]
    assert best["value"] == min(errors), "the direction of the metric is that of the task"


def test_the_test_split_is_scored_from_the_model_file(fork: Path) -> None:
    scores = json.loads((fork / "metrics/evaluate.json").read_text())["test"]
    assert scores["samples"] == 80
    assert scores["loss"] < 0.05
    assert len((fork / "plots/evaluate/predictions.csv").read_text().splitlines()) == 81


def test_it_is_checked_and_verified_by_training_again(fork: Path) -> None:
    assert "line on plane" in call(fork, "python", "-m", "pipeline", "check", PIPELINE_TRACKING="false")
    assert call(fork, "python", "-m", "pipeline", "verify", "--retrain", PIPELINE_TRACKING="false").endswith("identical\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train.metric": "valid/accuracy"},
            "train.metric: there is no metric valid/accuracy: choose one of valid/loss, valid/mean_absolute_error",
        ),
        (
            {"augment": digits_augment()},
            "augment: applies to images only, but this source has inputs of the kind points: set `augment: null`",
        ),
        (
            {"train.label_smoothing": 0.1},
            "train.label_smoothing: needs a task with classes, but this task has none: write `train.label_smoothing: 0.0`",
        ),
        (
            {"evaluate.test_time_augmentation": "mirror"},
            "evaluate.test_time_augmentation: needs images as inputs, and a task with the metric accuracy",
        ),
        ({"model": {"name": "mlp", "weights": None, "width": 8, "depth": 1, "dropout": 0.0}}, "model.name: "),
        ({"evaluate.name": "language_modeling"}, "evaluate."),
        ({"source.name": "digits"}, "train.metric: there is no metric valid/mean_absolute_error: choose one of valid/loss, valid/accuracy"),
    ],
)
def test_what_the_task_cannot_use_is_refused(fork: Path, changes: dict[str, Any], message: str) -> None:
    project.write_params(fork, CHANGES | changes)
    try:
        verb = "train" if "model" in changes else "check"
        done = run(fork, "python", "-m", "pipeline", verb, PIPELINE_TRACKING="false")
    finally:
        project.write_params(fork, CHANGES)
    assert done.returncode == 2
    assert message in done.stderr
    assert "params.yaml:" in done.stderr


def test_its_report_has_what_every_task_has(fork: Path) -> None:
    call(fork, "python", "-m", "pipeline", "report", PIPELINE_TRACKING="false")
    page = (fork / "reports/report.html").read_text(encoding="utf-8")
    titles = [line.removeprefix("<h2>").removesuffix("</h2>") for line in page.splitlines() if line.startswith("<h2>")]
    assert titles == ["Model", "Result", "Data", "Training", "Provenance", "Reproduce"]


def test_predict_refuses_its_model_because_its_inputs_cannot_be_read_from_files(fork: Path) -> None:
    done = run(fork, "python", "-m", "pipeline", "predict", "models/model.safetensors", "data/README.md")
    message = "`predict` does not support the kind of inputs `points` of this model: files and values cannot be turned into such inputs"
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
