"""A fork adds a task and inputs by new files alone, which the stages then train, score and verify; no file that exists changes.

The task of docs/extending.md, for a table, is killed and resumed, compared, predicted and served, too.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyarrow import parquet

from tests import project
from tests.conftest import MLP, preset
from tests.imports import TOP
from tests.repository import variables

FORK = Path(__file__).parent / "fork/pipeline"
CHANGES: dict[str, Any] = {
    "source": {"name": "plane", "root": "data/README.md", "valid": 0.2, "test": 0.2, "seed": 1, "folds": None, "fold": 0},
    "model": {"name": "line", "weights": None},
    "augment": None,
    "evaluate": {"name": "height", "batch_size": 32, "test_time_augmentation": "none", "metrics": []},
    "train.metric": "valid/mean_absolute_error",
    "loss": {"name": "squared"},
    "train.steps": 200,
    "train.report_every_steps": 20,
    "train.validate_every_steps": 40,
    "optimizer.learning_rate": 0.1,
}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": preset({})["loss"]}, "` or `python -m pipeline set loss=squared`"),
    ({"train.metric": "valid/accuracy"}, "train.metric: there is no metric valid/accuracy: choose one of valid/loss, valid/mean_absolute"),
    (
        {"augment": preset({})["augment"]},
        "augment: applies to images, and to texts with one target each, but these inputs are of the kind points: set `augment: null`",
    ),
    ({"evaluate.test_time_augmentation": "mirror"}, "evaluate.test_time_augmentation: needs images as inputs, and a task with the metric"),
    ({"model": MLP}, "model.name: "),
    ({"evaluate.name": "language_modeling"}, "evaluate."),
    ({"source.name": "digits"}, "train.metric: there is no metric valid/mean_absolute_error: choose one of valid/loss, valid/accuracy"),
]
DRIVER = """
import contextlib, io, json, sys
from pathlib import Path
from pipeline.__main__ import main

answers = []
for params, words in json.load(sys.stdin):
    Path("params.yaml").write_text(params, encoding="utf-8")
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(words)
    answers.append((code, output.getvalue(), errors.getvalue()))
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    code: int
    output: str
    errors: str


def answers(folder: Path, requests: Sequence[tuple[dict[str, Any], str]]) -> list[Answer]:
    """Run verbs, each with its changes of the parameters, in one process that imports the code of the fork. Restore the parameters."""
    texts = []
    for changes, words in requests:
        project.write_params(folder, CHANGES | changes)
        texts.append(((folder / "params.yaml").read_text(encoding="utf-8"), words.split()))
    project.write_params(folder, CHANGES)
    environment = variables(PIPELINE_TRACKING="false", PIPELINE_DEVICE="cpu")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=folder, input=json.dumps(texts), capture_output=True, text=True, check=True, env=environment
    )
    project.write_params(folder, CHANGES)
    return [Answer(*answer) for answer in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project of the fork."""
    folder = project.make(tmp_path_factory.mktemp("fork"), CHANGES, copy=True)
    shutil.copytree(FORK, folder / "pipeline", dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def said(folder: Path) -> dict[str, Answer]:
    """Run the stages and other verbs, and then what is refused. Return the answers by the verb, or by the message."""
    verbs = ("prepare", "train", "evaluate", "check", "verify --retrain", "report", "predict models/model.safetensors data/README.md")
    refused = [(changes, "train" if "model" in changes else "check") for changes, _ in REFUSED]
    names = [*(verb.split()[0] for verb in verbs), *(message for _, message in REFUSED)]
    return dict(zip(names, answers(folder, [*(({}, verb) for verb in verbs), *refused]), strict=True))


def test_the_spec_has_the_kinds_of_the_fork(folder: Path) -> None:
    spec = json.loads((folder / "data/prepared/spec.json").read_text())["spec"]
    assert spec["inputs"]["kind"] == "points"
    assert 4.9 < spec["inputs"]["largest"] <= 5
    assert spec["targets"] == {"kind": "height"}


def test_it_learns_and_its_metrics_are_reported(folder: Path) -> None:
    header, *rows = (folder / "plots/train/history.csv").read_text().splitlines()
    names = header.split(",")
    assert {"train/mean_absolute_error", "valid/loss", "valid/mean_absolute_error"} <= set(names)
    errors = [float(row.split(",")[names.index("valid/mean_absolute_error")]) for row in rows if row.split(",")[-1]]
    assert errors[-1] < errors[0] / 5
    best = json.loads((folder / "metrics/train.json").read_text())["best"]
    assert best["value"] == min(errors), "the direction of the metric is that of the task"


def test_the_test_split_is_scored_from_the_model_file(folder: Path) -> None:
    scores = json.loads((folder / "metrics/evaluate.json").read_text())["test"]
    assert scores["samples"] == 80
    assert scores["loss"] < 0.05
    assert parquet.read_table(folder / "predictions/test.parquet", columns=["actual", "predicted"]).num_rows == 80


def test_it_is_checked_and_verified_by_training_again(said: dict[str, Answer]) -> None:
    assert "line on plane" in said["check"].output
    assert said["verify"].output.endswith("identical\n")


def test_what_the_task_cannot_use_is_refused(said: dict[str, Answer]) -> None:
    for _, message in REFUSED:
        assert said[message].code == 2
        assert message in said[message].errors
        assert "params.yaml:" in said[message].errors


def test_its_report_has_what_every_task_has(folder: Path, said: dict[str, Answer]) -> None:
    assert said["report"].code == 0
    page = (folder / "reports/report.html").read_text(encoding="utf-8")
    for part in ("Scores, of the weights of step", "Data", "Parameters", "Provenance"):
        assert part in page


def test_predict_refuses_its_model_because_its_inputs_cannot_be_read_from_files(said: dict[str, Answer]) -> None:
    message = "`predict` does not support the kind of inputs `points` of this model: it has no module predict.py"
    assert (said["predict"].code, said["predict"].errors) == (2, f"error: {message}\n")


RATINGS = "data/ratings.csv"
# The child is forked before a torch operation has started threads, which a fork would not have.
VERBS = f"""
import os, shutil, signal
from pathlib import Path
from types import SimpleNamespace
import pipeline.prepare.stage, pipeline.train.stage, torch._inductor.config
from pipeline.__main__ import main
from pipeline.inference import model_file
from pipeline.runs.mlflow import saved_model
from pipeline.train.engine.checkpoint import Checkpoints

def save_and_die(*arguments, save=Checkpoints.save, **more):
    save(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)

if not (child := os.fork()):
    chosen = "set data={RATINGS} source.task=ordinal source.label_column=rating evaluate=ordinal train.metric=valid/mae train.epochs=8"
    assert main(chosen.split()) == main(["prepare"]) == 0
    Checkpoints.save = save_and_die
    os._exit(main(["train"]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
model = Path("models/model.safetensors")
assert not model.exists()
assert main(["train"]) == 0
model.rename("first.safetensors")
shutil.rmtree(".pipeline")
for words in ("train", "evaluate", f"compare first.safetensors {{model}}", f"predict {{model}} {RATINGS} --output out.parquet", "report"):
    assert main(words.split()) == 0, words
Path("served").mkdir()
logged = SimpleNamespace(artifact_location="served", source_run_id="run", model_id="model")
saved_model.save(Path("served"), model, logged, model_file.load(model)[1])
import json, mlflow, socket, threading, urllib.request, uvicorn
from mlflow.pyfunc import scoring_server

listening = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(scoring_server.init(mlflow.pyfunc.load_model("served/model")), log_level="error"))
threading.Thread(target=server.run, kwargs={{"sockets": [listening]}}, daemon=True).start()
rows = {{"dataframe_records": [{{"comfort": 2.0, "price": -1.0}}, {{"comfort": -2.0, "price": 1.0}}]}}
address = f"http://127.0.0.1:{{listening.getsockname()[1]}}/invocations"
question = urllib.request.Request(address, json.dumps(rows).encode(), {{"Content-Type": "application/json"}})
print(urllib.request.urlopen(question, timeout=60).read().decode())
"""


@pytest.fixture(scope="module")
def ordinal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a table, and the task of docs/extending.md in the folder `pipeline/tasks/ordinal`."""
    folder, generator = project.make(tmp_path_factory.mktemp("ordinal"), copy=True), np.random.default_rng(0)
    shutil.copytree(TOP / "presets", folder / "presets")
    section = (TOP / "docs/extending.md").read_text(encoding="utf-8").partition("\n## A task\n")[2].partition("\n## ")[0]
    files = re.findall(r"`(pipeline/tasks/ordinal/\w+\.py)`[^`]*(?:`[^`]+`[^`]*)*?```python\n(.*?)```", section, re.DOTALL)
    assert sorted(Path(name).stem for name, _ in files) == ["evaluate", "predict", "targets", "train"]
    (folder / "pipeline/tasks/ordinal").mkdir()
    for name, code in files:
        (folder / name).write_text(code, encoding="utf-8")
    rows = [(price, comfort, min(5, max(1, round(3 + comfort - price)))) for price, comfort in generator.normal(size=(200, 2)).tolist()]
    lines = ["price,comfort,rating", *(f"{price:.3f},{comfort:.3f},{rating}" for price, comfort, rating in rows)]
    (folder / RATINGS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_the_task_of_the_docs_is_resumed_compared_predicted_and_served(ordinal: Path) -> None:
    environment = variables(PIPELINE_TRACKING="false", PIPELINE_DEVICE="cpu", PIPELINE_CHECKPOINT_EVERY_STEPS="10")
    command = [sys.executable, "-W", "ignore", "-c", VERBS]
    done = subprocess.run(command, cwd=ordinal, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "resum" in done.stdout
    assert (ordinal / "models/model.safetensors").read_bytes() == (ordinal / "first.safetensors").read_bytes()
    scores = json.loads((ordinal / "metrics/evaluate.json").read_bytes())["test"]
    assert scores["mae_interval"]["low"] <= scores["mae"] <= scores["mae_interval"]["high"] < 1
    assert "test/mae" in done.stdout
    predicted = parquet.read_table(ordinal / "out.parquet").column("class").to_pylist()
    assert len(predicted) == 200
    assert set(predicted) <= {"1", "2", "3", "4", "5"}
    served = json.loads(done.stdout.splitlines()[-1])["predictions"]
    assert served[0]["class"] > served[1]["class"]
