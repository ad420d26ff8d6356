"""Every model on a GPU: it resumes to equal bytes in each precision and compiled form, and learns what it learns on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.data.prepared import Prepared
from pipeline.refusal import Refusal
from pipeline.training import Training
from tests import texts
from tests.engine import building
from tests.laws.test_resuming import AIRBENCH, COMMON, CONVNET, MOBILENET, OF_TEXT, SGD, STEPS

MLP = {"name": "mlp", "weights": None, "width": 16, "depth": 2, "dropout": 0.2}
RESNET = {"name": "resnet", "weights": None, "depth": 9, "width": 16}
IMAGE_MODELS = {"mlp": MLP, "convnet": CONVNET, "resnet": RESNET, "mobilenet": MOBILENET, "airbench": AIRBENCH}
TEXT_MODELS = {
    "rnn": ("texts", texts.LSTM | {"cell": "rnn"}),
    "lstm": ("texts", texts.LSTM),
    "gru": ("texts", texts.LSTM | {"cell": "gru"}),
    "transformer": ("texts", texts.TRANSFORMER),
    "language model: lstm": ("corpus", texts.LSTM_LANGUAGE_MODEL),
    "language model: transformer": ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL),
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {name: ("images", model) for name, model in IMAGE_MODELS.items()} | TEXT_MODELS
PRECISIONS = {
    "fp32": {"train.precision": "fp32"},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "bf16-true": {"train.precision": "bf16-true", "train.ema_decay": 0.0, "optimizer": SGD},
}
WHOLE = {"train.micro_batch_size": 16, "train.precision": "bf16"}
"""CUDA graphs need micro-batches of one size."""
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)

Data = Callable[[str], Prepared]


@pytest.fixture
def data(prepared: Prepared) -> Data:
    return lambda name: prepared if name == "images" else getattr(texts, name)()


def changes_of(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    kind, settings = MODELS[model]
    common = COMMON | {"train.channels_last": True} if kind == "images" else OF_TEXT
    return common | {"model": settings} | changes


def interrupted(begin: Callable[..., Training], params, prepared: Prepared) -> Training:
    """Train to the middle, then resume from the checkpoint of that step in a training that knows nothing else."""
    first = begin(params, "stopped", prepared)
    for report in first.reports():
        if report.step == STEPS // 2:
            break
    assert first.save_now()
    resumed = begin(params, "stopped", prepared)
    assert resumed.state.step == STEPS // 2
    list(resumed.reports())
    return resumed


def refuse_another_end(begin: Callable[..., Training], params, prepared: Prepared) -> None:
    whole = begin(params, "whole", prepared)
    list(whole.reports())
    resumed = interrupted(begin, params, prepared)
    assert building.same(whole.state.tensors(), resumed.state.tensors())
    assert whole.progress.rows == resumed.progress.rows


@EVERY_MODEL
@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_resumes_to_the_same_bytes_in_each_precision(train_params, begin, data: Data, model: str, precision: str) -> None:
    refuse_another_end(begin, train_params(changes_of(model, PRECISIONS[precision])), data(MODELS[model][0]))


@EVERY_MODEL
@pytest.mark.filterwarnings("default")  # whatever a compiler warns of
@pytest.mark.parametrize("mode", ["default", "graphs"])
def test_it_resumes_to_the_same_bytes_when_compiled(train_params, begin, data: Data, monkeypatch, tmp_path, model: str, mode: str) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    refuse_another_end(begin, train_params(changes_of(model, WHOLE | {"train.compile": mode})), data(MODELS[model][0]))


@EVERY_MODEL
def test_its_losses_are_those_of_a_cpu_but_for_rounding(train_params, begin, data: Data, model: str) -> None:
    """Without TF32 and without dropout, whose draws differ between devices."""
    kind, settings = MODELS[model]
    plain = settings | ({"dropout": 0.0} if "dropout" in settings else {})
    exact = {"model": plain, "train.precision": "fp32", "train.report_every_steps": 1, "train.steps": 4, "train.ema_decay": 0.0}
    params = train_params(changes_of(model, exact))
    on_gpu = begin(params, "gpu", data(kind))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # until the next training begins
    on_cpu = building.begin(params, data(kind))
    losses = [[report.metrics["train/objective"] for report in training.reports()] for training in (on_gpu, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


class Upsampled(nn.Module):
    """A model with an operation whose gradient CUDA has no deterministic code for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scale = torch.ones((), device=images.device, requires_grad=True)
        return self.network(nn.functional.interpolate(images * scale, size=8, mode="bicubic"))


def test_an_operation_that_is_not_deterministic_is_refused_with_the_remedy(train_params, begin, data: Data) -> None:
    training = begin(train_params(changes_of("convnet", {})), "work", data("images"))
    training.state.model.network = Upsampled(training.state.model.network)
    with pytest.raises(Refusal, match=r"^train\.deterministic: .*: write `train\.deterministic: false`, or choose another model"):
        list(training.reports())


def test_the_step_that_overflows_in_fp16_is_skipped_counted_and_resumed(train_params, begin, data: Data) -> None:
    """The scale of the loss begins so high that the first gradients are infinite."""
    params, prepared = train_params(changes_of("convnet", {"train.precision": "fp16", "train.steps": STEPS})), data("images")
    found = []
    for stop in (STEPS, STEPS // 2):
        training = begin(params, f"until {stop}", prepared)
        training.state.scaler.load_state_dict(training.state.scaler.state_dict() | {"scale": 2.0**24})
        for report in training.reports():
            if report.step == stop:
                break
        assert training.save_now()
        resumed = begin(params, f"until {stop}", prepared)
        list(resumed.reports())
        found.append(resumed)
    assert found[0].progress.rows[0]["train/skipped_steps"] >= 1
    assert found[0].progress.rows == found[1].progress.rows
    assert building.same(*(training.state.tensors() for training in found))
