"""Fixtures of many tests: the digits preset with changes, small data and a cleaned environment."""

import copy
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

# Tests run in parallel processes, so more threads than one in each would compete for the cores.
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "PIPELINE_THREADS": "1"}

import numpy as np
import PIL.Image
import pytest
import torch

from pipeline.core.params import from_data
from pipeline.core.prepared import Prepared, Split
from pipeline.core.registry import Registry
from pipeline.core.spec import Spec
from pipeline.core.yaml_document import Document
from pipeline.train.params import TrainParams
from tests.specs import image_spec

TOP = Path(__file__).parents[1]
gc.disable()


def pytest_collection_finish() -> None:
    """Begin to search for garbage, and leave out what the modules have made: to search it takes a twelfth of the time of all tests."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


MLP = {"name": "mlp", "weights": None, "width": 16, "depth": 2, "dropout": 0.0}


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of the user who runs the tests; undo the limit and the threads that a stage sets in this process."""
    torch.set_num_threads(1)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", PIL.Image.MAX_IMAGE_PIXELS)
    of_mlflow = ("TRACKING_URI", "RUN_ID", "EXPERIMENT_NAME", "EXPERIMENT_ID", "REGISTRY_URI", "WORKSPACE", "ENABLE_WORKSPACES")
    for name in ("DVC_ROOT", "DVC_STAGE", *(f"MLFLOW_{each}" for each in of_mlflow)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPELINE_DEVICE", "cpu")


def changed(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Put values such as `{"train.steps": 3, "model": {...}}` into the sections and return them."""
    for dotted, value in changes.items():
        *names, key = dotted.split(".")
        section = data
        for name in names:
            section = section[name]
        section[key] = value
    return data


@cache
def parsed_preset(name: str) -> dict[str, Any]:
    """Parse a preset once for all tests, because that takes longer than many of them."""
    return Document.read(TOP / f"presets/{name}.yaml").data


def preset(changes: dict[str, Any], name: str = "digits") -> dict[str, Any]:
    """Return a preset with changes."""
    return changed(copy.deepcopy(parsed_preset(name)), changes)


@pytest.fixture
def train_params() -> Callable[[dict[str, Any]], TrainParams]:
    """Return a function: `train_params({"train.steps": 3})` is the digits preset with changes, with a small mlp unless they name a model."""

    def build(changes: dict[str, Any]) -> TrainParams:
        return from_data(preset({"model": MLP, **changes}), TrainParams, "test")

    return build


@pytest.fixture
def spec() -> Spec:
    return image_spec(shape=(8, 8, 1), classes=("a", "b", "c"), mean=(0.4,), std=(0.3,))


@pytest.fixture
def prepared(spec: Spec) -> Prepared:
    """Return three classes that differ in brightness and can be learned."""

    def split(samples: int, seed: int) -> Split:
        random = np.random.default_rng(seed)
        targets = np.arange(samples) % 3
        noise = random.integers(0, 60, size=(samples, 8, 8, 1))
        return Split((noise + 90 * targets[:, None, None, None]).astype(np.uint8), targets.astype(np.int64))

    return Prepared(spec, "digest", {"train": split(50, 1), "valid": split(20, 2), "test": split(20, 3)})


PLOTS = ("curves.plot_reliability", "curves.plot_history", "mistakes.plot_confusion", "mistakes.plot_mistakes")
"""What plots the PNG files of an evaluation of classes, which takes longer than the rest of it."""


def plot_nothing(patch: pytest.MonkeyPatch) -> None:
    for name in PLOTS:
        patch.setattr(f"pipeline.evaluate.reports.figures.{name}", lambda *_, **__: None)


@pytest.fixture(scope="module")
def unplotted() -> Iterator[None]:
    """Let evaluations plot no figures."""
    with pytest.MonkeyPatch.context() as patch:
        plot_nothing(patch)
        yield


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `set data=PATH` recommend as for a model whose time cannot be counted: to count and to measure it takes most of the verb's time."""
    monkeypatch.setattr("pipeline.tools.training_time.counted", lambda *_: None)


@pytest.fixture
def cpu() -> torch.device:
    return torch.device("cpu")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Registry, str, str], None]:
    """Return a function that adds a choice of this name, a module with this code, to a registry."""

    def add(registry: Registry, name: str, code: str) -> None:
        names = registry.names  # looked up once in the folder of the package, so before it has this module, too
        package, folder = importlib.import_module(registry.package), tmp_path / registry.package.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        monkeypatch.setitem(registry.__dict__, "names", (*names, name))
        monkeypatch.delitem(sys.modules, f"{registry.package}.{name}", raising=False)

    return add
