"""The logged model answers as `load_model` does, alone and over HTTP, and needs no pickle."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import pipeline
from pipeline.__main__ import main
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.inputs.table.description import CategoryColumn, NumberColumn, TableInputs
from pipeline.runs.events import DELIVERED
from pipeline.runs.journal import Dataset, Journal, RunInfo
from pipeline.runs.mlflow import saved_model
from tests.imports import TOP
from tests.models.text_models import CLASSIFIERS, LANGUAGE_MODELS, build, spec_for
from tests.runs import tiny
from tests.runs.conftest import Tracked, turned_to
from tests.specs import pair_spec
from tests.texts import ENCODER_DECODER


def model_uri(tracked: Tracked) -> str:
    (output,) = tracked.run_of(tracked.journal.name).outputs.model_outputs
    return f"models:/{output.model_id}"


def load_logged(tracked: Tracked, path: Path) -> Any:
    """Log the model file `path` to a run, and return the model that MLflow loads."""
    import mlflow

    training = tracked.begin()
    training.model(path)
    training.close()
    assert tracked.deliver(training.folder)
    (output,) = tracked.run_of(training.folder.name).outputs.model_outputs
    return mlflow.pyfunc.load_model(f"models:/{output.model_id}")


def records(path: Path, inputs: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in each.record().items() if key != "input"} for each in pipeline.load_model(path).predict(inputs)]


@pytest.fixture
def store(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    monkeypatch.setattr(sys, "path", list(sys.path))  # MLflow adds the folder of the code
    with turned_to(tracked):
        yield


def test_the_logged_model_has_a_description_and_the_metrics_of_each_split(tracked: Tracked, tmp_path: Path) -> None:
    model, params = (
        tiny.write(tmp_path / "model.safetensors", seed=3),
        {"model.name": "torchvision", "model.architecture": "v1.5", "source.name": "a:b"},
    )
    info, evaluated = RunInfo(params=params), RunInfo(datasets=(Dataset("digits test", "d" * 8, "test"),))
    training = tracked.begin(info, experiment="models")
    training.metrics(1, {"valid/accuracy": 0.2})
    training.metrics(2, {"valid/accuracy": 0.5, "train/loss": 2.0})
    training.model(model)
    training.close()
    for value in (0.5, 0.25):
        time.sleep(0.002)  # a model has one value of a metric a millisecond
        evaluation = Journal.reopen(training.folder, stage="evaluate", info=evaluated, amends=True)
        evaluation.metrics(2, {"test/accuracy": value})
        evaluation.close()
    for _ in range(2):  # the second time all of it is known
        assert tracked.deliver(training.folder)
        (training.folder / DELIVERED).unlink()
    run = tracked.run_of(training.folder.name)
    (output,) = run.outputs.model_outputs
    logged = tracked.client.get_logged_model(output.model_id)
    assert (logged.name, logged.status.name, logged.params) == ("v1-5-a-b", "READY", params)
    assert logged.experiment_id == run.info.experiment_id != "1"
    assert "the most probable classes with their probabilities, of ant, bee, cat." in logged.tags["mlflow.note.content"]
    assert sorted((point.key, point.value, point.dataset_name) for point in logged.metrics) == [
        ("test/accuracy", 0.25, "digits test"),
        ("test/accuracy", 0.5, "digits test"),
        ("train/loss", 2.0, None),
        ("valid/accuracy", 0.5, None),
    ]
    assert [point.step for point in tracked.client.get_metric_history(run.info.run_id, "test/accuracy")] == [2, 2]


def write(path: Path, kind: str) -> tuple[Path, Any, list[Any]]:
    """Write a model file. Return it, some inputs, and wrong inputs."""
    if kind == "texts":
        settings = CLASSIFIERS[5]
        return (
            tiny.export(path, settings, build(settings), spec_for(settings)),
            ["abcab", "hzg", "ha" * 20],
            [[1], ["a", ""], [["a", "b"]], []],
        )
    if kind == "pairs":
        spec, settings = pair_spec(), ENCODER_DECODER | {"dropout": 0.0}
        path = tiny.export(path, settings, MODELS.settings("transformer")(**settings).build(spec), spec)
        return path, ["abcab", "hg"], [["a", 1], ["a", ""]]
    number = NumberColumn(kind="number", name="size", missing=False, mean=1.0, std=2.0)
    date = NumberColumn(kind="date", name=1, missing=True, mean=0.0, std=1.0)
    inputs = TableInputs(columns=(number, CategoryColumn(name="city", missing=True, values=("Oslo", "Lima"), others=False), date))
    spec, settings = (
        Spec(inputs=inputs, targets=tiny.SPEC.targets),
        {"name": "mlp", "weights": None, "width": 4, "depth": 1, "dropout": 0.0},
    )
    rows = [{"city": "Lima", "size": 2, "more": 7, 1: "1970-01-03"}, {"city": None, "size": 3.5, "more": 7, 1: None}]
    twice = pandas.DataFrame([[1, None, "a", "b"]], columns=["size", 1, "city", "city"])
    wrong = [[{"city": "Oslo"}], [{**rows[0], "size": "big"}], ["/etc/passwd"], [], twice]
    return tiny.export(path, settings, MODELS.settings("mlp")(**settings).build(spec), spec), rows, wrong


def test_images_are_predicted_as_by_load_model(tracked: Tracked, store: None) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    model, images = mlflow.pyfunc.load_model(model_uri(tracked)), tiny.images(3)
    assert model.predict(images) == model.predict(images.tolist()) == records(tracked.model, list(images))
    assert model.metadata.metadata == {"classes": ["ant", "bee", "cat"]}
    assert [len(each["top"]) for each in model.predict(images, params={"top_k": 1})] == [1, 1, 1]
    for wrong in (images / 255, images.astype(int) + 999, images.astype(int) - 1000, images[:, :2], ["/etc/passwd"], 7, [[1], [1, 2]]):
        with pytest.raises(MlflowException) as refused:
            model.predict(wrong)
        assert refused.value.error_code == "INVALID_PARAMETER_VALUE"
    with pytest.raises(MlflowException, match="top_k: is 0: write 1 or more"):
        model.predict(images, params={"top_k": 0})


def test_the_code_of_a_model_is_whole_and_one_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(saved_model.packed_code(tmp_path / "pipeline.zip")) as packed:
        names = packed.namelist()
    modules = [path.relative_to(TOP) for path in (TOP / "pipeline").rglob("*.py")]
    assert sorted(names) == sorted({each.as_posix() for each in modules} | {f"{each.parent.as_posix()}/" for each in modules})


@pytest.mark.slow
def test_elsewhere_the_model_brings_its_code_in_one_file(tracked: Tracked, store: None, tmp_path: Path) -> None:
    import mlflow

    folder = Path(mlflow.artifacts.download_artifacts(model_uri(tracked), dst_path=str(tmp_path / "model")))
    program = "import mlflow, numpy, sys; model = mlflow.pyfunc.load_model(sys.argv[1]); images = numpy.zeros(eval(sys.argv[2]), int); "
    program += "print(model.predict(images)[0]['class']); import pipeline; print(pipeline.__file__)"
    words = [sys.executable, "-W", "ignore", "-c", program, str(folder), str(tiny.images(1).shape)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("pipeline.zip/pipeline/__init__.py")
    assert len([path for path in folder.rglob("*") if path.is_file()]) < 20


@pytest.mark.parametrize("kind", ["texts", "pairs", "table"])
def test_other_inputs_are_predicted_as_by_load_model(tracked: Tracked, store: None, tmp_path: Path, kind: str) -> None:
    from mlflow.exceptions import MlflowException

    path, inputs, all_wrong = write(tmp_path / "model.safetensors", kind)
    model, expected = load_logged(tracked, path), records(path, inputs)
    frame = pandas.DataFrame(inputs if kind == "table" else {"text": inputs}).astype(object)
    assert model.predict(inputs) == model.predict(frame) == expected
    if kind == "table":
        by_text = [{str(name): np.asarray(cell) for name, cell in row.items()} for row in inputs]  # as MLflow reads JSON
        assert model.predict(by_text) == expected
        assert model.predict({name: [row[name] for row in by_text] for name in by_text[0]}) == expected
        assert model.predict(pandas.Series(inputs[0])) == expected[:1]
    else:
        assert model.predict(inputs[1]) == expected[1:2]
    for wrong in all_wrong:
        with pytest.raises(MlflowException):
            model.predict(wrong)


def test_a_language_model_writes_as_generate_does(
    tracked: Tracked, store: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.exceptions import MlflowException

    settings = LANGUAGE_MODELS[0]
    path = tiny.export(tmp_path / "model.safetensors", settings, build(settings), spec_for(settings))
    model = load_logged(tracked, path)
    capsys.readouterr()
    assert main(["generate", str(path), "--prompt", "abc", "--temperature", "0.5", "--seed", "3", "--length", "6"]) == 0
    written = capsys.readouterr().out.rstrip("\n")
    assert len(written) > len("abc")
    assert model.predict(["abc"], params={"temperature": 0.5, "seed": 3, "length": 6}) == [{"text": written}]
    for wrong in ({"temperature": -1.0}, {"length": 0}):
        with pytest.raises(MlflowException, match="write numbers from 0 and from 1"):
            model.predict(["abc"], params=wrong)


@pytest.fixture
def address(tracked: Tracked, store: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of MLflow's server of the model that all tests here share."""
    import mlflow
    import uvicorn
    from mlflow.pyfunc import scoring_server

    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")  # `init` sets it, too
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(scoring_server.init(mlflow.pyfunc.load_model(model_uri(tracked))), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/invocations"
        server.should_exit = True
        thread.join()


def ask(address: str, question: dict[str, object]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})  # noqa: S310  # loopback
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310  # loopback
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_logged_model_answers_over_http(tracked: Tracked, address: str) -> None:
    images = tiny.images(3)
    assert ask(address, {"inputs": images.tolist()}) == (200, {"predictions": records(tracked.model, list(images))})
    code, answered = ask(address, {"inputs": (images / 255).tolist()})
    assert (code, answered["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "the input has values of type float64 or out of range: send a list of images, whole numbers from 0 to 255" in answered["message"]
