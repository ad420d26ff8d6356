import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.tracking import tiny
from tests.tracking.conftest import Told


def model_uri(told: Told) -> str:
    (output,) = told.run_of(told.journal.name).outputs.model_outputs
    return f"models:/{output.model_id}"


def logits(told: Told, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    module, _ = tiny.build(told.model)
    with torch.inference_mode():
        result: NDArray[np.float32] = module.eval()(torch.from_numpy(images)).numpy()
    return result


@pytest.fixture
def store(told: Told, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """MLflow turned to the store that all tests here share."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    address, before = f"sqlite:///{told.environment.root}/mlflow.db", mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(address)
    yield address
    mlflow.set_tracking_uri(before)


def test_the_logged_model_takes_raw_images_in_any_number_and_no_pickle(told: Told, store: str) -> None:
    import mlflow

    model = mlflow.pyfunc.load_model(model_uri(told))
    for count in (3, 1):
        images = tiny.images(count)
        assert np.array_equal(model.predict(images), logits(told, images))
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, *tiny.SHAPE)
    assert model.metadata.signature.outputs.inputs[0].shape == (-1, tiny.CLASSES)


def test_the_logged_model_answers_over_http(told: Told, store: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model_uri(told), "--env-manager", "local", "--port", str(port)]
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"  # noqa: PTH120  # resolving it would leave the environment
    server = subprocess.Popen(
        command, env={**os.environ, "MLFLOW_TRACKING_URI": store, "PATH": path}, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        answered = ask(f"http://127.0.0.1:{port}/invocations", {"inputs": tiny.images(3).tolist()}, server)
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=30)
    assert np.array_equal(np.asarray(answered["predictions"], np.float32), logits(told, tiny.images(3)))


def ask(address: str, question: dict[str, object], server: subprocess.Popen[bytes]) -> dict[str, list[list[float]]]:
    request = urllib.request.Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})  # noqa: S310  # loopback
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310  # loopback
                answer: dict[str, list[list[float]]] = json.load(reply)
                return answer
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except OSError:
            time.sleep(0.2)
    raise AssertionError("no answer")
