"""Captured steps end in the bytes of eager ones, for every model, precision and feature, and whatever keeps a step from being recorded."""

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.train.engine import captured, update
from pipeline.train.training import Training
from tests.gpu.conftest import Begin, Data
from tests.gpu.models import EVERY_MODEL, EVERY_PRECISION, MODELS, PRECISIONS, changes_of
from tests.gpu.test_every_model import assert_trained
from tests.laws.test_resuming import AIRBENCH, CONVNET, MUON, SGD, assert_same_end
from tests.train.engine.building import stop

LONG = {"train.steps": 20}
STOP = 9
"""Both parts, until and after this step, are long enough for all graphs to be recorded and replayed."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[captured.CapturedStep]:
    """Return the captured steps that trainings make in this test."""
    found: list[captured.CapturedStep] = []

    class Kept(captured.CapturedStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(captured, "CapturedStep", Kept)
    return found


def trained(begin: Begin, params, prepared, graphs: str, name: str | None = None) -> Training:
    training = begin(params, name or graphs, prepared, graphs=graphs)
    list(training.reports())
    return training


def resumed(begin: Begin, params, prepared, before: str, after: str) -> Training:
    """Train with PIPELINE_GRAPHS=before to the step STOP, and with PIPELINE_GRAPHS=after from there."""
    first = begin(params, f"{before} first", prepared, graphs=before)
    stop(first, STOP)
    return trained(begin, params, prepared, after, f"{before} first")


def assert_captured(steps: list[captured.CapturedStep]) -> None:
    for step in steps:
        assert not step.graphs.stopped
        recordings = step.graphs.recordings.values()
        assert any(recording.graph for recording in recordings)
        assert all(recording.graph for recording in recordings if recording.calls > 2)


def assert_ends_alike(begin: Begin, params, prepared, steps: list[captured.CapturedStep], eager: Training) -> None:
    """Captured as a whole, and from or to a checkpoint of an eager training, it ends as `eager`."""
    assert_same_end(eager, trained(begin, params, prepared, "on"))
    assert_same_end(eager, resumed(begin, params, prepared, "on", "off"))
    assert_same_end(eager, resumed(begin, params, prepared, "off", "on"))
    assert_captured(steps)


@EVERY_MODEL
@EVERY_PRECISION
def test_a_captured_training_ends_in_the_bytes_of_an_eager_one(
    train_params, begin: Begin, steps, data: Data, model: str, precision: str
) -> None:
    params, prepared = train_params(changes_of(model, LONG | PRECISIONS[precision])), data(MODELS[model][0])
    eager = begin(params, "eager", prepared, graphs="off")
    first = {name: weight.detach().clone() for name, weight in eager.state.model.named_parameters() if weight.requires_grad}
    list(eager.reports())
    assert_trained(first, eager)
    assert_ends_alike(begin, params, prepared, steps, eager)


RECIPES: dict[str, dict[str, Any]] = {
    "lanes": {"train.lanes": 4, "train.micro_batch_size": 3, "train.batch_size": 20},
    "one micro-batch": {"train.micro_batch_size": 16},
    "many micro-batches": {"train.micro_batch_size": 2, "train.precision": "bf16"},
    "clipped, every step reported": {"train.clip_norm": 0.1, "train.report_every_steps": 1},
    "nothing measured, no EMA": {"train.clip_norm": None, "train.ema_decay": 0.0, "train.report_every_steps": 4},
    "skip": {"train.on_nonfinite": "skip", "train.precision": "bf16"},
    "skip, not clipped": {"train.on_nonfinite": "skip", "train.clip_norm": None, "optimizer": SGD},
    "frozen": {"train.freeze": ["0.*"]},
    "mixed": {"augment.mixup": 0.4, "augment.cutmix": 1.0, "train.precision": "fp16"},
    "muon": {"optimizer": MUON, "train.on_nonfinite": "skip"},
    "muon in fp16": {"optimizer": MUON, "train.precision": "fp16"},
    "muon in bf16-true": {"model": AIRBENCH, "optimizer": MUON, "train.precision": "bf16-true", "train.ema_decay": 0.0},
    "compiled": {"train.compile": "default", "train.precision": "bf16"},
}


@pytest.mark.filterwarnings("default")  # whatever a compiler warns of
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_captured_training_ends_in_the_bytes_of_an_eager_one_with(train_params, begin: Begin, steps, prepared, recipe: str) -> None:
    params = train_params(changes_of("convnet", LONG | RECIPES[recipe]))
    assert_ends_alike(begin, params, prepared, steps, trained(begin, params, prepared, "off"))


def test_memory_that_runs_out_releases_the_graphs_before_the_micro_batch_is_halved(
    train_params, begin: Begin, steps, prepared, monkeypatch, capsys
) -> None:
    accumulate = update.accumulate_gradients

    def failing(state, batch, micro_batch_size, **more):
        if state.step + 1 == 10 and micro_batch_size > 3:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        return accumulate(state, batch, micro_batch_size, **more)

    monkeypatch.setattr(update, "accumulate_gradients", failing)
    params = train_params(changes_of("convnet", LONG))
    eager = trained(begin, params, prepared, "off")
    capsys.readouterr()
    assert_same_end(eager, trained(begin, params, prepared, "on"))
    assert eager.progress.micro_batch_changes == [{"step": 10, "micro_batch_size": 3}]
    assert "not captured as CUDA graphs, which changes no result: too little memory" in capsys.readouterr().out
    assert steps[0].graphs.stopped


def wait(outputs: Tensor, _call: int) -> Tensor:
    return outputs * (outputs.detach().sum().item() < 1e9)


def wait_later(outputs: Tensor, call: int) -> Tensor:
    return wait(outputs, call) if call > 4 else outputs * True


def draw_on_the_host(outputs: Tensor, _call: int) -> Tensor:
    return outputs * (0.9 + 0.1 * float(torch.rand(())))


OBSTACLES = {
    wait: "an operation waits for the GPU",
    wait_later: "operation ",
    draw_on_the_host: "the network draws random numbers on the host",
}


class Obstructed(nn.Module):
    def __init__(self, network: nn.Module, obstacle: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.network, self.obstacle, self.calls = network, obstacle, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.obstacle(self.network(inputs), self.calls)


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_network_that_cannot_be_recorded_is_trained_eagerly_to_the_same_bytes(
    train_params, begin: Begin, prepared, capsys, obstacle: Callable[[Tensor, int], Tensor]
) -> None:
    params, ends = train_params(changes_of("convnet", LONG | {"model": CONVNET | {"dropout": 0.5}})), []
    for graphs in ("off", "on"):
        random.seed(1)
        training = begin(params, graphs, prepared, graphs=graphs)
        model = training.state.model
        model.network = Obstructed(model.network, obstacle)
        capsys.readouterr()
        list(training.reports())
        ends.append(training)
    found = capsys.readouterr().out
    assert "not captured as CUDA graphs, which changes no result: " in found
    assert OBSTACLES[obstacle] in found
    assert_same_end(*ends)


def test_graphs_do_not_make_micro_batches_smaller(train_params, begin: Begin, prepared, capsys) -> None:
    """An eager training fits into what this process may take, and graphs need more."""
    size = {"train.batch_size": 16_384, "train.micro_batch_size": 16_384, "train.steps": 8}
    params = train_params(changes_of("convnet", size | {"model": CONVNET | {"width": 64}}))
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    eager = trained(begin, params, prepared, "off")
    most = torch.cuda.max_memory_reserved() + 2**26
    torch.cuda.empty_cache()
    capsys.readouterr()
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(0).total_memory)
    try:
        found = trained(begin, params, prepared, "on")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(capsys.readouterr().out)  # pytest -rP shows whether it was captured
    assert found.progress.micro_batch_changes == []
    assert_same_end(eager, found)
