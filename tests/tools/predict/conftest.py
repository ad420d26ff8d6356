"""A model file of given image size with random weights, and the command `predict`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pipeline.__main__ import main
from pipeline.inference import model_file
from pipeline.inference.model_file import Manifest
from pipeline.train.params import TrainParams
from tests.conftest import MLP
from tests.specs import image_spec

CLASSES = ("ant", "bee", "[red]cat")
Shape = tuple[int, int, int]


class Predicted(NamedTuple):
    """What the command did: exit code, records and lines on stderr."""

    code: int
    records: list[dict[str, Any]]
    errors: list[str]


Predict = Callable[..., Predicted]


@pytest.fixture
def write_model(tmp_path: Path, monkeypatch, train_params: Callable[[dict[str, Any]], TrainParams]) -> Callable[..., Path]:
    """Return a function: `write_model((8, 8, 1))` writes `model.safetensors` to a new folder, which becomes the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(shape: Shape = (8, 8, 1), name: str = "model.safetensors", white: int | None = None, **changes: Any) -> Path:
        spec = image_spec(shape=shape, classes=CLASSES, mean=(0.4,) * shape[2], std=(0.2,) * shape[2])
        spec = spec.model_copy(update={"inputs": spec.inputs.model_copy(update={"white": white})})
        torch.manual_seed(0)
        params = train_params({"model": {**MLP, "width": 64}})
        weights = params.model.build(spec).state_dict()
        manifest = Manifest(
            params=params.model_dump(mode="json"), spec=spec, **{"precision": "fp32", "step": 1, "inputs": {}, "fingerprint": {}, **changes}
        )
        model_file.export(tmp_path / name, weights, manifest)
        return Path(name)

    return write


@pytest.fixture
def predict(capfd: pytest.CaptureFixture[str]) -> Predict:
    """Return a function: `predict("cat.jpg")` runs the command for `model.safetensors`."""

    def run(*arguments: object, model: str = "model.safetensors") -> Predicted:
        capfd.readouterr()
        code = main(["predict", model, *map(str, arguments)])
        output, errors = capfd.readouterr()
        assert "Traceback" not in errors
        assert (output + errors).replace("\n", "").isprintable()
        return Predicted(code, [json.loads(line) for line in output.splitlines()], errors.splitlines())

    return run
