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
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn

from pipeline.core.inputs.text import TextInputs, TokenizerDescription
from pipeline.core.spec import Spec
from pipeline.core.tokenizer import Tokenizer
from pipeline.tracking import mirror, saved_model
from pipeline.tracking.events import DELIVERED
from pipeline.tracking.journal import Dataset, Journal, RunInfo
from pipeline.tracking.store import Store
from tests.models.text_models import CLASSIFIERS, LANGUAGE_MODELS, build, spec_for
from tests.tracking import tiny
from tests.tracking.conftest import Tracked
from tests.train.engine.building import model_of


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


def test_the_logged_model_names_the_most_likely_classes_on_request(tracked: Tracked, store: str) -> None:
    import mlflow

    model, images = mlflow.pyfunc.load_model(model_uri(tracked)), tiny.images(3)
    shares = softmax(logits(tracked, images).astype(np.float64), axis=1)
    records = model.predict(images, params={"return": "probabilities", "top_k": 2})
    assert [len(record["top"]) for record in records] == [2, 2, 2]
    for record, row in zip(records, shares, strict=True):
        assert record["top"][0] == {"class": record["class"], "probability": record["probability"]}
        best = np.argsort(-row)[:2]
        assert [each["class"] for each in record["top"]] == [("ant", "bee", "cat")[number] for number in best]
        assert [each["probability"] for each in record["top"]] == pytest.approx(row[best].tolist(), rel=1e-6)
    assert len(model.predict(images, params={"return": "probabilities"})[0]["top"]) == 3


@pytest.mark.parametrize("params", [{"return": "classes"}, {"top_k": 0}, {"top_k": "few"}])
def test_other_params_are_refused(tracked: Tracked, store: str, params: dict[str, Any]) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=r"`return` is `logits` or `probabilities`|top_k"):
        mlflow.pyfunc.load_model(model_uri(tracked)).predict(tiny.images(1), params=params)


@pytest.fixture(
    scope="module",
    params=[pytest.param(CLASSIFIERS[5], id="classifier"), pytest.param(LANGUAGE_MODELS[0], id="language model", marks=pytest.mark.slow)],
)
def text_model(tracked: Tracked, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "TextModel":
    """A logged model of texts."""
    settings, spec = request.param, spec_for(request.param)
    module = model_of(build(settings), spec).eval().requires_grad_(False)  # as a model that was loaded
    path = tiny.write(tmp_path_factory.mktemp("text") / "model.safetensors", seed=4 + bool(settings["pooling"]))
    training = Journal.create(tracked.environment.root, stage="train", info=RunInfo(params={"model.name": settings["name"]}))
    training.model(path)
    training.close()
    assert mirror.deliver(training.folder, Store(tracked.environment), lambda _: (module, spec))
    (output,) = tracked.run_of(training.folder.name).outputs.model_outputs
    return TextModel(f"models:/{output.model_id}", module, spec)


class TextModel(NamedTuple):
    address: str
    module: nn.Module
    spec: Spec

    def logits(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the outputs for each text alone; for a language model, those after its last token."""
        assert isinstance(self.spec.inputs, TextInputs)
        tokenizer, found = Tokenizer(self.spec.inputs.tokenizer), []
        for text in texts:
            with torch.inference_mode():
                tokens = tokenizer.encode(text)[: self.spec.inputs.length]
                outputs = self.module(torch.from_numpy(tokens[None]))
            found.append(outputs[0, -1] if self.spec.targets.per_token else outputs[0])
        return torch.stack(found).numpy()


TEXTS = ["abcab", "hzg", "e"]


def test_the_logged_model_of_texts_takes_strings(text_model: TextModel, store: str) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    path = list(sys.path)
    model = mlflow.pyfunc.load_model(text_model.address)
    sys.path[:] = path
    expected = text_model.logits(TEXTS)
    assert np.allclose(model.predict(TEXTS), expected, atol=1e-5)
    assert np.allclose(model.predict(pandas.DataFrame({"text": TEXTS})), expected, atol=1e-5)
    assert np.allclose(model.predict("hzg"), expected[1:2], atol=1e-5)
    records = model.predict(TEXTS, params={"return": "probabilities", "top_k": 1})
    names = ("<padding>", "<unknown>", "<end>", *"abcdefgh") if text_model.spec.targets.per_token else text_model.spec.targets.output_names
    assert [record["class"] for record in records] == [names[number] for number in expected.argmax(1)]
    for wrong in ([1], ["a", None], [["a", "b"]], []):
        with pytest.raises(MlflowException, match="the input contains something else than texts; send a list of texts"):
            model.predict(wrong)
    if text_model.spec.targets.per_token:
        assert np.allclose(model.predict(["ha" * 20]), text_model.logits(["ha" * 6]), atol=1e-5), "the last 12 tokens count"
        assert model.predict([""]).shape == (1, 11)
    else:
        assert np.allclose(model.predict(["ha" * 20]), text_model.logits(["ha" * 20]), atol=1e-5), "the first 12 tokens count"
        with pytest.raises(MlflowException, match="text 1 of the input has no tokens"):
            model.predict(["a", ""])


def test_the_copied_tokenizer_needs_no_pipeline(tmp_path: Path) -> None:
    package = saved_model.copy_tokenizer(tmp_path)
    description = TokenizerDescription(kind="word", vocabulary=("cat", "café"), normalization=("lowercase",))
    code = f"""
import sys
from {package.name}.core.tokenizer import Tokenizer, TokenizerDescription
print(Tokenizer(TokenizerDescription.model_validate_json({description.model_dump_json()!r})).encode("CAFÉ dog cat").tolist())
print([name for name in sys.modules if name.split(".")[0] == "pipeline"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(Tokenizer(description).encode("CAFÉ dog cat").tolist()), "[]"]


@pytest.mark.slow
def test_the_logged_model_of_texts_answers_over_http(tracked: Tracked, text_model: TextModel, tmp_path: Path) -> None:
    with served(tracked, text_model.address, tmp_path) as address:
        code, answered = ask(address, {"inputs": TEXTS})
        assert code == 200, answered
        assert np.allclose(answered["predictions"], text_model.logits(TEXTS), atol=1e-5)
        code, answered = ask(address, {"inputs": TEXTS, "params": {"return": "probabilities", "top_k": 2}})
        assert (code, [len(record["top"]) for record in answered["predictions"]]) == (200, [2, 2, 2])
        code, answered = ask(address, {"inputs": [3]})
        assert (code, answered["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert "send a list of texts" in answered["message"]


@pytest.fixture(scope="module")
def invocations(tracked: Tracked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the model that all tests here share."""
    with served(tracked, model_uri(tracked), tmp_path_factory.mktemp("served")) as address:
        yield address


@contextlib.contextmanager
def served(tracked: Tracked, model: str, folder: Path) -> Iterator[str]:
    """Serve a model from a working folder without a checkout, and yield the address to ask."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local", "--port", str(port)]
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"  # noqa: PTH120  # resolving it would leave the environment
    variables = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tracked.environment.root}/mlflow.db",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "PATH": path,
    }
    server = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stderr=subprocess.DEVNULL, start_new_session=True)
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
    code, answered = ask(invocations, {key: tiny.images(3).tolist(), "params": {"return": "probabilities", "top_k": 1}})
    assert code == 200, answered
    assert [record["class"] for record in answered["predictions"]] == [
        ("ant", "bee", "cat")[number] for number in logits(tracked, tiny.images(3)).argmax(1)
    ]


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
