import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from pipeline.core.inputs.table import CategoryColumn, NumberColumn, TableInputs
from pipeline.core.inputs.text import AnyDescription, TokenizerDescription
from pipeline.core.inputs.text_pair import TextPairInputs
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.core.tasks.multi_label import LabelTargets
from pipeline.core.tokenizer import Tokenizer
from pipeline.evaluate.decoding import decode
from pipeline.inference import model_file
from pipeline.runs.events import DELIVERED
from pipeline.runs.journal import Dataset, Journal, RunInfo
from pipeline.runs.mlflow import saved_model
from tests import imports
from tests.models.text_models import CLASSIFIERS, LANGUAGE_MODELS, build, spec_for
from tests.runs import tiny
from tests.runs.conftest import Tracked, turned_to
from tests.specs import bytes_of_gpt2, pair_spec
from tests.texts import ENCODER_DECODER

LOGITS = {"return": "logits"}


def model_uri(tracked: Tracked) -> str:
    (output,) = tracked.run_of(tracked.journal.name).outputs.model_outputs
    return f"models:/{output.model_id}"


def logits(tracked: Tracked, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    module, *_ = model_file.load(tracked.model)
    with torch.inference_mode():
        result: NDArray[np.float32] = module(torch.from_numpy(images)).numpy()
    return result


def load_logged(tracked: Tracked, path: Path) -> Any:
    """Log the model file `path` to a run, and return the model that MLflow loads."""
    import mlflow

    training = tracked.begin()
    training.model(path)
    training.close()
    assert tracked.deliver(training.folder)
    (output,) = tracked.run_of(training.folder.name).outputs.model_outputs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))  # MLflow adds the folder of the tokenizer
        return mlflow.pyfunc.load_model(f"models:/{output.model_id}")


def confidence(module: Any, pairs: TextPairInputs, source: torch.Tensor) -> float:
    """Return the geometric mean of the probabilities of the tokens that the model writes for a source text (length,), the end included."""
    (tokens,) = decode(module, source[None], pairs)
    tokens = [*tokens, pairs.tokenizer.end][: pairs.target_length - 1]
    rows = np.full((2, pairs.target.length), pairs.pad, np.int32)
    rows[1, : len(tokens)] = [pairs.tokenizer.end, *tokens[:-1]]
    sources = np.full((2, pairs.source.length), pairs.pad, np.int32)
    sources[1, : len(source)] = source
    with torch.inference_mode():
        outputs = module(torch.from_numpy(pairs.rows(sources, rows)))[1, : len(tokens)].double()
        outputs[:, [number for number in (pairs.pad, pairs.tokenizer.unknown) if number is not None]] = -torch.inf
        return float(outputs.log_softmax(-1)[range(len(tokens)), tokens].mean().exp())


@pytest.fixture
def store(tracked: Tracked, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with turned_to(tracked):
        yield


def test_the_logged_model_takes_raw_images_in_any_number_and_no_pickle(tracked: Tracked, store: None) -> None:
    import mlflow

    model = mlflow.pyfunc.load_model(model_uri(tracked))
    for count in (3, 1):
        images = tiny.images(count)
        assert np.array_equal(model.predict(images, params=LOGITS), logits(tracked, images))
        assert np.array_equal(model.predict(images.astype(np.int64), params=LOGITS), logits(tracked, images))
    assert model.metadata.metadata == {"classes": ["ant", "bee", "cat"]}


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


def test_the_logged_model_names_the_most_likely_classes_and_refuses_other_params(tracked: Tracked, store: None) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    model, images = mlflow.pyfunc.load_model(model_uri(tracked)), tiny.images(3)
    shares = softmax(logits(tracked, images).astype(np.float64), axis=1)
    records = model.predict(images, params={"top_k": 2})
    assert [len(record["top"]) for record in records] == [2, 2, 2]
    for record, row in zip(records, shares, strict=True):
        assert record["top"][0] == {"class": record["class"], "probability": record["probability"]}
        best = np.argsort(-row)[:2]
        assert [each["class"] for each in record["top"]] == [("ant", "bee", "cat")[number] for number in best]
        assert [each["probability"] for each in record["top"]] == pytest.approx(row[best].tolist(), rel=1e-6)
    assert len(model.predict(images)[0]["top"]) == 3
    for params in ({"return": "classes"}, {"top_k": 0}):
        with pytest.raises(MlflowException, match="`return` is `logits` or `probabilities`, and `top_k` is a number from 1 on"):
            model.predict(images, params=params)


@pytest.mark.parametrize(
    ("settings", "described"),
    [
        pytest.param(CLASSIFIERS[5], None, id="classifier"),
        pytest.param(CLASSIFIERS[5], bytes_of_gpt2(), id="pretrained tokenizer", marks=pytest.mark.slow),
        pytest.param(LANGUAGE_MODELS[0], None, id="language model", marks=pytest.mark.slow),
    ],
)
def test_the_logged_model_of_texts_takes_strings(
    tracked: Tracked, store: None, tmp_path: Path, settings: dict[str, Any], described
) -> None:
    from mlflow.exceptions import MlflowException

    spec = spec_for(settings, tokenizer=described)
    path = tiny.export(tmp_path / "model.safetensors", settings, build(settings, tokenizer=described), spec)
    module, _ = model_file.load(path)
    is_classifier, tokenizer = not spec.targets.per_token, Tokenizer(spec.inputs.tokenizer)

    def expected(*texts: str) -> NDArray[np.float32]:
        """Return the outputs for each text alone; for a language model, those after its last token."""
        with torch.inference_mode():
            found = [module(torch.from_numpy(tokenizer.encode(text)[None, : spec.inputs.length]))[0] for text in texts]
        return torch.stack(found if is_classifier else [outputs[-1] for outputs in found]).numpy()

    model, texts = load_logged(tracked, path), ["abcab", "hzg", "e"]
    outputs = expected(*texts)
    assert np.allclose(model.predict(texts, params=LOGITS), outputs, atol=1e-5)
    assert np.allclose(model.predict(pandas.DataFrame({"text": texts}), params=LOGITS), outputs, atol=1e-5)
    assert np.allclose(model.predict("hzg", params=LOGITS), outputs[1:2], atol=1e-5)
    records = model.predict(texts, params={"top_k": 1})
    names = spec.targets.output_names if is_classifier else ("<padding>", "<unknown>", "<end>", *"abcdefgh")
    assert [record["class"] for record in records] == [names[number] for number in outputs.argmax(1)]
    for wrong in ([1], ["a", None], [["a", "b"]], []):
        with pytest.raises(MlflowException, match="the input contains something else than texts; send a list of texts"):
            model.predict(wrong)
    if is_classifier:
        assert np.allclose(model.predict(["ha" * 20], params=LOGITS), expected("ha" * 20), atol=1e-5), "the first 12 tokens count"
        with pytest.raises(MlflowException, match="text 1 of the input has no tokens"):
            model.predict(["a", ""])
    else:
        assert np.allclose(model.predict(["ha" * 20], params=LOGITS), expected("ha" * 6), atol=1e-5), "the last 12 tokens count"
        assert model.predict([""], params=LOGITS).shape == (1, 11)


def test_the_logged_model_of_pairs_writes_the_texts_of_the_model(tracked: Tracked, store: None, tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException

    spec, settings = pair_spec(), ENCODER_DECODER | {"dropout": 0.0}
    network = MODELS.settings("transformer")(**settings).build(spec)
    for parameter in network.parameters():
        parameter.data.mul_(4)  # so that no two tokens are nearly as probable
    path = tiny.export(tmp_path / "model.safetensors", settings, network, spec)
    module, _ = model_file.load(path)
    model = load_logged(tracked, path)
    texts, tokenizer = ["abcab", "hg", "e", "ha" * 20], Tokenizer(spec.inputs.tokenizer)
    sources = torch.from_numpy(tokenizer.rows(texts, spec.inputs.length)[0])
    expected = [tokenizer.decode(tokens) for tokens in decode(module, sources, spec.inputs)]
    assert len(set(expected)) > 1
    written = model.predict(texts)
    assert [record["text"] for record in written] == expected
    assert [record["confidence"] for record in written] == pytest.approx(
        [confidence(module, spec.inputs, row) for row in sources], rel=1e-4
    )
    assert model.predict("hg")[0]["text"] == expected[1]
    with pytest.raises(MlflowException, match="text 1 of the input has no tokens"):
        model.predict(["a", ""])


@pytest.mark.parametrize(
    "description", [TokenizerDescription(kind="word", vocabulary=("cat", "café"), normalization=("lowercase",)), bytes_of_gpt2()]
)
def test_the_copied_tokenizer_needs_no_pipeline(tmp_path: Path, description: AnyDescription) -> None:
    package = saved_model.copy_tokenizer(tmp_path)
    code = f"""
import sys
from {package.name}.core.inputs.table import TableInputs
from {package.name}.core.inputs.text import TextInputs
from {package.name}.core.tokenizer import Tokenizer
inputs = TextInputs(length=8, tokenizer={description.model_dump(mode="json")!r})
print(Tokenizer(inputs.tokenizer).encode("CAFÉ dog cat").tolist())
print([name for name in sys.modules if name.split(".")[0] == "pipeline"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(Tokenizer(description).encode("CAFÉ dog cat").tolist()), "[]"]


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
    inputs, expected = tiny.images(3).tolist(), logits(tracked, tiny.images(3))
    code, answered = ask(address, {"inputs": inputs})
    assert code == 200, answered
    assert [record["class"] for record in answered["predictions"]] == [("ant", "bee", "cat")[number] for number in expected.argmax(1)]
    code, answered = ask(address, {"instances": inputs, "params": LOGITS})
    assert code == 200, answered
    assert np.array_equal(np.asarray(answered["predictions"], np.float32), expected)
    code, answered = ask(address, {"inputs": inputs, "params": {"returns": "probabilities", "top_k": 1}})
    assert code == 400, answered
    assert "params has returns, but this model knows only return and top_k" in answered["message"]
    code, answered = ask(address, {"inputs": (tiny.images(1) / 255).tolist()})
    assert (code, answered["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "the input contains values of type float64; send raw images, " in answered["message"]


def test_the_code_of_the_logged_model_needs_no_pipeline() -> None:
    path = Path("pipeline/runs/mlflow/served_model.py")
    assert imports.closure(path) == {path}


def test_other_input_is_refused_with_the_remedy() -> None:
    from mlflow.exceptions import MlflowException

    from pipeline.runs.mlflow.served_model import Arrays

    arrays, images = Arrays(saved_model.described(tiny.SPEC)), tiny.images(1)
    for given, found in (
        (images.astype(np.float32), "values of type float32"),
        ((images + 256 * np.eye(4, dtype=int)[None, ..., None]).tolist(), "values from "),
        ((-1 - images.astype(int)).tolist(), "values from -"),
        (images[..., 0].tolist(), "an array of shape (1, 4, 4)"),
        ([], "an array of shape (0,)"),
        ([[1], [1, 2]], "lists of different lengths"),
        (7, "an array of shape ()"),
        ([[[["7"]] * 4] * 4], "values of type <U1"),
    ):
        with pytest.raises(MlflowException) as refused:
            arrays.rows(given)
        assert str(refused.value).endswith(
            "send raw images, integers from 0 to 255 of shape (n, 4, 4, 1): the model normalises them itself"
        )
        assert f"the input contains {found}" in str(refused.value)


def test_a_model_of_several_labels_answers_those_above_their_thresholds() -> None:
    from pipeline.runs.mlflow.served_model import labels

    targets = LabelTargets(labels=("dog", "night", "snow"), thresholds=(0.5, 0.3, 0.9))
    described = saved_model.described(tiny.SPEC.model_copy(update={"targets": targets}))
    answered = labels(np.array([0.51, 0.31, 0.89]), described["names"], described["thresholds"], top_k=1)
    assert answered == {"labels": ["dog", "night"], "top": [{"label": "snow", "probability": 0.89}]}


def test_rows_of_a_table_are_read_by_the_names_of_their_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException

    from pipeline.runs.mlflow.served_model import Rows

    number = NumberColumn(kind="number", name="size", missing=False, mean=1.0, std=2.0)
    date = NumberColumn(kind="date", name="when", missing=False, mean=0.0, std=1.0)
    inputs = TableInputs(columns=(number, CategoryColumn(name="city", missing=True, values=("Oslo", "Lima"), others=False), date))
    monkeypatch.syspath_prepend(saved_model.copy_tokenizer(tmp_path).parent)
    rows = Rows(saved_model.described(Spec(inputs=inputs, targets=tiny.SPEC.targets)))
    records = [
        {"when": "1970-01-03", "more": 7, "city": "Lima", "size": 2},
        {"when": None, "more": 7, "city": "Rome", "size": float("nan")},
        {"when": "NaT", "more": 7, "city": None, "size": "3.5"},
    ]
    expected = [[2, 1, 2], [np.nan, 2, np.nan], [3.5, np.nan, np.nan]]
    columns = {name: np.array([record[name] for record in records], object) for name in records[0]}
    arrays = [{name: np.asarray(cell) for name, cell in record.items()} for record in records]  # as MLflow reads `inputs`
    for given in (records, pandas.DataFrame(records), columns, arrays):
        np.testing.assert_array_equal(rows.rows(given), expected)
    np.testing.assert_array_equal(rows.rows(pandas.Series(records[0])), expected[:1])
    example = saved_model.given_example(inputs, inputs.random_samples(2))
    np.testing.assert_allclose(rows.rows(example), inputs.random_samples(2), atol=1e-5)  # dates have seconds
    wrong = {
        "row 0 of the input has no column 'city'": [{"size": 1, "when": None}],
        "contains something else than rows": [1],
        "has no rows": [],
        "several columns called city; send rows": pandas.DataFrame([[1, None, "a", "b"]], columns=["size", "when", "city", "city"]),
    }
    for message, given in {
        **wrong,
        "row 0 of the input has big in the column size: write a number": [{**records[0], "size": "big"}],
    }.items():
        with pytest.raises(MlflowException, match=message):
            rows.rows(given)
    rows.inputs = rows.inputs.model_copy(update={"columns": (rows.inputs.columns[0].model_copy(update={"name": 1}),)})
    np.testing.assert_array_equal(rows.rows([{1: 2.0}]), [[2.0]])
    with pytest.raises(MlflowException, match="row 0 of the input has a column 0, but the columns of this model are numbered from 1"):
        rows.rows([{0: 2.0, 1: 3.0}])
