"""What many tests need: the digits preset with changes, small data, and a project of one's own in a temporary folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# tests run side by side: with as many threads as there are cores each would wait for cores that the others have
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "PIPELINE_THREADS": "1"}

import numpy as np
import PIL.Image
import pytest
import torch

from pipeline.data.prepared import Prepared, Split
from pipeline.params.document import Document
from pipeline.params.load import from_data
from pipeline.params.train import TrainParams
from pipeline.spec import Spec
from tests.specs import image_spec

TOP = Path(__file__).parents[1]
MLP = {"name": "mlp", "width": 16, "depth": 2, "dropout": 0.0}


@pytest.fixture(autouse=True)
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the person who runs the tests decides anything in them, and no test leaves a bound for the next."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", PIL.Image.MAX_IMAGE_PIXELS)
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_RUN_ID",
        "MLFLOW_EXPERIMENT_NAME",
        "DVC_ROOT",
        "DVC_STAGE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPELINE_DEVICE", "cpu")


def changed(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The sections with `{"train.steps": 3, "model": {...}}` put in."""
    for dotted, value in changes.items():
        *sections, key = dotted.split(".")
        place = data
        for section in sections:
            place = place[section]
        place[key] = value
    return data


@pytest.fixture
def train_params() -> Callable[[dict[str, Any]], TrainParams]:
    """`train_params({"train.steps": 3})`: the digits preset with changes, on a small mlp unless they name another model."""

    def build(changes: dict[str, Any]) -> TrainParams:
        data = changed(Document.read(TOP / "presets/digits.yaml").data, {"model": MLP, **changes})
        return from_data(data, TrainParams, "test")

    return build


@pytest.fixture
def spec() -> Spec:
    return image_spec(shape=(8, 8, 1), classes=("a", "b", "c"), mean=(0.4,), std=(0.3,))


@pytest.fixture
def prepared(spec: Spec) -> Prepared:
    """Three classes that differ in brightness, and so can be learned."""

    def split(samples: int, seed: int) -> Split:
        random = np.random.default_rng(seed)
        targets = np.arange(samples) % 3
        noise = random.integers(0, 60, size=(samples, 8, 8, 1))
        return Split((noise + 90 * targets[:, None, None, None]).astype(np.uint8), targets.astype(np.int64))

    return Prepared(spec, "digest", {"train": split(50, 1), "valid": split(20, 2), "test": split(20, 3)})


@pytest.fixture
def cpu() -> torch.device:
    return torch.device("cpu")
