"""Exported files give the outputs of the model for any batch size, or are not written at all."""

import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.registry import MODELS
from pipeline.core.spec import Spec
from pipeline.inference import model_file
from pipeline.inference.networks import Model, postprocessing, preprocessing
from pipeline.inputs.table.description import CategoryColumn, NumberColumn, TableInputs
from pipeline.tasks.regression.targets import NumberTargets
from pipeline.tools.export import command
from pipeline.tools.export.command import FORMATS
from tests import project
from tests.models.text_models import CLASSIFIERS, LANGUAGE_MODELS, NGRAMS, build, spec_for
from tests.tools.export import models
from tests.train.engine.building import model_of

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working folder, without prepared data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    return tmp_path


@pytest.fixture
def mlp(folder: Path) -> Path:
    return models.write(folder / "model.safetensors", models.MLP)


def export(model: Path, name: str, *arguments: str) -> Path:
    """Export a model file, and return the file that was written."""
    assert main(["export", str(model), "--format", name, *arguments]) == 0
    return model.with_suffix(f".{name}")


def metadata(path: Path, name: str) -> dict[str, Any]:
    """Read the metadata as another program does, without this project's code."""
    if name == "onnx":
        import onnxruntime

        text = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_modelmeta().custom_metadata_map["pipeline"]
    else:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(next(member for member in archive.namelist() if member.endswith("extra/pipeline.json"))).decode()
    found: dict[str, Any] = json.loads(text)
    return found


IMAGE_MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "resnet": (models.RESNET, {"shape": (9, 12, 1)}),
    "airbench-bf16": (models.AIRBENCH, {"bf16_weights": True, "channels_last": True}),
    "mobilenet": (models.MOBILENET, {}),
}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("pt2", "airbench-bf16"),
        *(pytest.param("onnx", model, marks=SLOW) for model in ("resnet", "airbench-bf16", "mobilenet")),
    ],
)
def test_an_exported_model_has_the_outputs_of_the_model_for_any_batch_size(folder: Path, capsys, name: str, model: str) -> None:
    settings, options = IMAGE_MODELS[model]
    path = models.write(folder / "model.safetensors", settings, **options)
    written = export(path, name)
    assert sorted(file.name for file in folder.iterdir()) == sorted([path.name, written.name])
    output = capsys.readouterr().out
    assert "compared on 64 random samples, because data/prepared has no test split of the model's dataset: largest difference " in output
    original, run = models.in_float32(path), FORMATS[name].load(written, 1)
    shape = options.get("shape", (8, 8, 3))
    for count in (1, 7):
        images = np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)
        expected = original(torch.from_numpy(images)).numpy()
        found = run(images)
        assert (found.shape, found.dtype) == ((count, 3), np.float32)
        assert np.abs(found - expected).max() <= 1e-4
        assert np.ptp(expected, axis=1).min() > 1e-3, "the classes can be told apart"


def test_numbers_leave_an_exported_model_in_their_units(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = NumberTargets(columns=("year", "share"), mean=(2000.0, -0.5), std=(15.0, 0.01))
    path = models.write(folder / "model.safetensors", models.MLP, targets=targets)
    written = export(path, "pt2")
    assert "in standard deviations of the targets" in capsys.readouterr().out
    images = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    found = FORMATS["pt2"].load(written, 1)(images)
    model, _ = model_file.load(path, complete=True)
    with torch.no_grad():
        np.testing.assert_allclose(found, model(torch.from_numpy(images)).numpy(), rtol=1e-6)
    assert np.abs((found - targets.mean) / targets.std).max() < 5
    run = FORMATS["pt2"].load(written, 1)
    for shift, is_equal in (((1e-3, 0.0), True), ((0.0, 1e-5), False)):  # in standard deviations: less than 1e-4, and 1e-3
        difference = command.compare(model, lambda rows, shift=shift: run(rows) + shift, images, variable_length=False)
        assert (difference <= command.TOLERANCE) is is_equal


@pytest.mark.parametrize("name", ["onnx", "pt2"])
def test_the_file_says_what_the_model_is_and_what_it_takes(mlp: Path, name: str) -> None:
    found = metadata(export(mlp, name), name)
    assert found["format"] == "pipeline-export-1"
    assert found["classes"] == ["cat", "dog", "eel"]
    assert found["model_sha256"] == files.digest(mlp)
    assert found["input"] == {"name": "inputs", "dtype": "uint8", "shape": ["batch", 8, 8, 3]}
    assert found["output"] == {"name": "outputs", "dtype": "float32"}
    assert found["spec"]["inputs"]["mean"] == [0.4, 0.4, 0.4]
    assert found["params"]["model"] == models.MLP


def test_several_models_are_exported_as_one(mlp: Path, folder: Path) -> None:
    other = models.write(folder / "other.safetensors", models.MLP | {"width": 8})
    export(mlp, "pt2", "--with", str(other))
    found = metadata(folder / "ensemble.pt2", "pt2")
    assert found["model_sha256"] == f"{files.digest(mlp)}+{files.digest(other)}"
    exported = FORMATS["pt2"].load(folder / "ensemble.pt2", 1)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    each = [model_file.load(path)[0].eval()(torch.from_numpy(images)).softmax(-1).detach().numpy() for path in (mlp, other)]
    assert np.abs(np.exp(exported(images)) - np.mean(each, axis=0)).max() <= 1e-4


@pytest.mark.parametrize("name", [pytest.param("onnx", marks=SLOW), "pt2"])
def test_the_same_model_gives_the_same_bytes(mlp: Path, folder: Path, name: str) -> None:
    other = folder / "elsewhere/second.safetensors"
    other.parent.mkdir()
    shutil.copy(mlp, other)
    assert export(mlp, name).read_bytes() == export(other, name).read_bytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a trained model and the journal of its run."""
    changes = {"train.steps": 2, "train.report_every_steps": 2, "train.validate_every_steps": 2}
    folder = project.make(tmp_path_factory.mktemp("trained"), changes)
    return project.run(folder, "prepare", "train", PIPELINE_TRACKING="true", PIPELINE_TRACKING_MIRROR="false")


def test_a_run_is_exported_to_models_and_compared_on_the_test_split(trained: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(trained)
    (journal,) = Path(".pipeline/journal").iterdir()
    assert main(["export", journal.name, "--format", "pt2"]) == 0
    output = capsys.readouterr().out
    assert "export: models/model.pt2 (" in output
    assert re.search(r"compared on the 359 samples of the test split: largest difference \S+ \(allowed: 1e-04\)", output)


@pytest.mark.parametrize("by", [-2e-4, float("nan")])
def test_a_file_with_other_outputs_is_not_written(mlp: Path, folder: Path, capsys, monkeypatch, by: float) -> None:
    def load(path: Path, threads: int) -> Callable[[Any], Any]:
        run = command.load_pt2(path, threads)
        return lambda inputs: run(inputs) + by

    monkeypatch.setitem(FORMATS, "pt2", FORMATS["pt2"]._replace(load=load))
    (folder / "model.pt2").write_text("an earlier one")
    assert main(["export", str(mlp), "--format", "pt2"]) == 1
    assert "was not written, because its outputs on 64 random samples" in capsys.readouterr().err
    assert (folder / "model.pt2").read_text() == "an earlier one"
    assert len(list(folder.iterdir())) == 2, "no draft is left"


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function: `refused("model", "--format", "pt2")` returns the error of an export that must leave the folder as it was."""

    def run(*arguments: str) -> str:
        before = sorted(folder.rglob("*"))
        capsys.readouterr()
        assert main(["export", *arguments]) == 2
        assert sorted(folder.rglob("*")) == before
        error = capsys.readouterr().err.splitlines()[-1]
        return error.removeprefix("error: ")

    return run


def test_an_output_path_that_cannot_be_written_is_refused(mlp: Path, folder: Path, refused: Callable[..., str]) -> None:
    model = str(mlp)
    for output in (str(folder), "model.safetensors", "none/model.pt2"):
        no_file = "should be the name of a file in a folder that exists, and of no model file"
        assert refused(model, "--format", "pt2", "--output", output) == f"--output {output}: {no_file}"


def test_onnx_without_its_packages_is_refused_with_the_command(mlp: Path, refused, monkeypatch) -> None:
    monkeypatch.setattr(command, "PACKAGES", ("onnx", "no_such_package"))
    assert refused(str(mlp), "--format", "onnx").startswith("--format onnx: no_such_package is not installed: run `make setup-export`")


def test_a_model_that_cannot_be_captured_is_refused(mlp: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return inputs[: int(inputs.sum())].float()

    monkeypatch.setattr("pipeline.inference.networks.Model.forward", forward)
    assert refused(str(mlp), "--format", "pt2").startswith("--format pt2: this model cannot be exported (")


NETWORKS = {
    "lstm": LANGUAGE_MODELS[1],
    "decoder": LANGUAGE_MODELS[4],
    "encoder": CLASSIFIERS[6],
    "classifier": CLASSIFIERS[3],
    "ngrams": NGRAMS,
}


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("onnx", "ngrams"),
        *(pytest.param("pt2", each, marks=SLOW) for each in ("classifier", "decoder")),
        *(pytest.param("onnx", each, marks=SLOW) for each in ("classifier", "decoder", "encoder", "lstm")),
    ],
)
def test_texts_of_any_number_and_length_give_the_outputs_of_the_model(folder: Path, name: str, network: str) -> None:
    settings = NETWORKS[network]
    spec = spec_for(settings)
    model = model_of(build(settings), spec).eval().requires_grad_(False)
    chosen, draft = FORMATS[name], folder / "draft"
    assert command.shape(spec.inputs) == ["batch", "length"]
    chosen.write(command.capture(model, spec.inputs), command.variable_axes(spec.inputs), "{}", draft)
    run, rows = chosen.load(draft, 1), spec.inputs.random_samples(40)
    assert command.compare(model, run, rows, variable_length=True) <= command.TOLERANCE
    texts = np.ascontiguousarray(rows[:3, :5])
    assert np.abs(run(texts) - model(torch.from_numpy(texts)).numpy()).max() <= 1e-4


@pytest.mark.parametrize(
    "knots", [pytest.param((), marks=SLOW), ((1e9, -1.0), (1e9 + 2, 0.0), (1e9 + 8, 3.0))], ids=["standardized", "ranks"]
)
@pytest.mark.parametrize("name", ["onnx", "pt2"])
def test_rows_of_a_table_give_the_outputs_of_the_model(folder: Path, name: str, knots: tuple[tuple[float, float], ...]) -> None:
    number = NumberColumn(kind="number", name="a", missing=True, mean=1e9, std=2.0, knots=knots)
    inputs = TableInputs(columns=(number, CategoryColumn(name="b", missing=False, values=("x", "y"), others=False)))
    spec, settings = Spec(inputs=inputs, targets=NumberTargets(columns=("c",), mean=(5.0,), std=(3.0,))), MODELS.settings("linear")
    network = settings(name="linear", weights=None).build(spec)
    model = Model(network, preprocessing(inputs, channels_last=False)).eval().requires_grad_(False)
    model.postprocessing = postprocessing(spec.targets)
    chosen, draft = FORMATS[name], folder / "draft"
    chosen.write(command.capture(model, inputs), command.variable_axes(inputs), "{}", draft)
    rows = np.array([[1e9 + 3, 0.0], [np.nan, 1.0], [1e9, 2.0], [np.nan, np.nan]])
    found = chosen.load(draft, 1)(rows)
    assert np.abs(found - model(torch.from_numpy(rows)).numpy()).max() <= 1e-5
    assert len(set(found.ravel().tolist())) == 4
