import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.tracking import mirror
from pipeline.tracking.cursor import DELIVERED
from pipeline.tracking.journal import Journal
from pipeline.tracking.run_info import Dataset, RunInfo
from pipeline.tracking.store import Store
from tests.tracking import tiny
from tests.tracking.conftest import Tracked


def model_uri(tracked: Tracked) -> str:
    (output,) = tracked.run_of(tracked.journal.name).outputs.model_outputs
    return f"models:/{output.model_id}"


def logits(tracked: Tracked, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    module, *_ = tiny.build(tracked.model)
    with torch.inference_mode():
        result: NDArray[np.float32] = module.eval()(torch.from_numpy(images)).numpy()
    return result


@pytest.fixture
def store(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """MLflow turned to the store that all tests here share."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    address, before = f"sqlite:///{tracked.environment.root}/mlflow.db", mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(address)
    yield address
    mlflow.set_tracking_uri(before)


def test_the_logged_model_takes_raw_images_in_any_number_and_no_pickle(tracked: Tracked, store: str) -> None:
    import mlflow

    model = mlflow.pyfunc.load_model(model_uri(tracked))
    for count in (3, 1):
        images = tiny.images(count)
        assert np.array_equal(model.predict(images), logits(tracked, images))
        assert np.array_equal(model.predict(images.astype(np.int64)), logits(tracked, images))
    assert model.metadata.signature.outputs.inputs[0].shape == (-1, tiny.CLASSES)
    assert model.metadata.metadata == {"classes": ["ant", "bee", "cat"]}


@pytest.mark.parametrize(
    "images", [tiny.images(2) / 255, tiny.images(2).astype(np.float32), tiny.images(2).astype(np.int16) - 300, tiny.images(2)[0]]
)
def test_the_logged_model_refuses_other_dtypes_and_shapes(tracked: Tracked, store: str, images: NDArray[np.generic]) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=r"send raw images, integers from 0 to 255 of shape \(n, 4, 4, 1\)"):
        mlflow.pyfunc.load_model(model_uri(tracked)).predict(images)


def test_the_logged_model_has_a_description_and_the_metrics_of_each_split(tracked: Tracked, tmp_path: Path) -> None:
    model, params = (
        tiny.write(tmp_path / "model.safetensors", seed=3),
        {"model.name": "torchvision", "model.architecture": "v1.5", "source.name": "a:b"},
    )
    info, evaluated = RunInfo(params=params), RunInfo(datasets=(Dataset("digits test", "d" * 8, "test"),))
    training = Journal.create(tracked.environment.root, stage="train", info=info)
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
        assert mirror.deliver(training.folder, Store(tracked.environment), tiny.build)
        (training.folder / DELIVERED).unlink()
    run = tracked.run_of(training.folder.name)
    (output,) = run.outputs.model_outputs
    logged = tracked.client.get_logged_model(output.model_id)
    assert (logged.name, logged.status.name, logged.params) == ("v1-5-a-b", "READY", params)
    assert "of the classes ant, bee, cat." in logged.tags["mlflow.note.content"]
    assert sorted((point.key, point.value, point.dataset_name) for point in logged.metrics) == [
        ("test/accuracy", 0.25, "digits test"),
        ("test/accuracy", 0.5, "digits test"),
        ("train/loss", 2.0, None),
        ("valid/accuracy", 0.5, None),
    ]
    assert [point.step for point in tracked.client.get_metric_history(run.info.run_id, "test/accuracy")] == [2, 2]


@pytest.fixture(scope="module")
def invocations(tracked: Tracked) -> Iterator[str]:
    """The address of a server of the model that all tests here share."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model_uri(tracked), "--env-manager", "local", "--port", str(port)]
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"  # noqa: PTH120  # resolving it would leave the environment
    variables = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tracked.environment.root}/mlflow.db",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "PATH": path,
    }
    server = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(600):
            assert server.poll() is None, "the server ended"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=30):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=30)


def ask(address: str, question: dict[str, object]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})  # noqa: S310  # loopback
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310  # loopback
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("key", ["inputs", "instances"])
def test_the_logged_model_answers_over_http(tracked: Tracked, invocations: str, key: str) -> None:
    code, answered = ask(invocations, {key: tiny.images(3).tolist()})
    assert code == 200, answered
    assert np.array_equal(np.asarray(answered["predictions"], np.float32), logits(tracked, tiny.images(3)))


@pytest.mark.parametrize(
    ("images", "found"),
    [
        ((tiny.images(1) / 255).tolist(), "values of type float64"),
        (tiny.images(1).astype(float).tolist(), "values of type float64"),
        ((tiny.images(1) + 256 * np.eye(4, dtype=int)[None, ..., None]).tolist(), "values from "),
        ((-1 - tiny.images(1).astype(int)).tolist(), "values from -"),
        (tiny.images(1)[..., 0].tolist(), "an array of shape (1, 4, 4)"),
        (tiny.images(1)[0].tolist(), "an array of shape (4, 4, 1)"),
        ([], "an array of shape (0,)"),
        ([[[[True]] * 4] * 4], "values of type bool"),
        ([[[["7"]] * 4] * 4], "values of type <U1"),
    ],
)
def test_other_input_is_refused_over_http_with_the_remedy(invocations: str, images: list[Any], found: str) -> None:
    code, answered = ask(invocations, {"inputs": images})
    assert (code, answered["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert f"the input contains {found}" in answered["message"]
    assert answered["message"].endswith("send raw images, integers from 0 to 255 of shape (n, 4, 4, 1): the model normalises them itself")
