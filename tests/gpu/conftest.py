"""What only a CUDA GPU can show; skipped without one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.core.environment import CaptureMode, Environment
from pipeline.core.prepared import Prepared
from pipeline.inference.machine import Machine, set_determinism
from pipeline.train.engine.checkpoint import Checkpoints
from pipeline.train.params import TrainParams
from pipeline.train.training import Training
from tests import texts
from tests.gpu.models import MODELS
from tests.gpu.presets import images

Begin = Callable[..., Training]
Data = Callable[[str], Prepared]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU"))


@pytest.fixture
def begin(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Return a function: `begin(params, name, data)` is a training on the GPU, from the last checkpoint of this name if there is one.

    `graphs` is the value of PIPELINE_GRAPHS.
    """
    monkeypatch.setenv("PIPELINE_DEVICE", "cuda")
    monkeypatch.setenv("PIPELINE_THREADS", str(torch.get_num_threads()))
    here = Machine.set_up(Environment.read())

    def begun(params: TrainParams, name: str = "work", data: Prepared = prepared, graphs: CaptureMode | None = None) -> Training:
        set_determinism(params.train.deterministic)
        (tmp_path / name).mkdir(exist_ok=True)
        machine = replace(here, graphs=graphs or here.graphs)
        return Training.begin(params, data, machine, Checkpoints(tmp_path / name, kept=2))

    yield begun
    set_determinism(False)


@pytest.fixture
def data(prepared: Prepared, weights: None) -> Data:  # a model may need them
    """Return a function that returns the prepared data of a kind, by its name in MODELS."""
    given = {
        "images": lambda: prepared,
        "large images": lambda: images((32, 32, 3), samples=40),
        "texts": texts.texts,
        "corpus": texts.corpus,
    }
    return lambda name: given[name]()


@pytest.fixture
def weights(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the pretrained weights that a model with LoRA needs, and change to their folder."""
    case = getattr(request.node, "callspec", None)
    _, model = MODELS.get(case.params.get("model") if case else None, ("", {}))
    if model.get("lora"):
        from tests.hub import models

        models.save(tmp_path, model["architecture"], task="ForCausalLM")
        monkeypatch.chdir(tmp_path)
