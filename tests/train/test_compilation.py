"""What the compiler is told before it compiles."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch._dynamo.config
import torch._inductor.config
from torch import nn

from pipeline.core.spec import Spec
from pipeline.inference import machine
from pipeline.train import beginning
from tests import texts
from tests.conftest import preset
from tests.laws.test_resuming import OF_TEXT
from tests.train.engine.building import begin, exchanging, group_of_one, model_of, run, same, steps
from tests.train.group import several


@pytest.mark.parametrize(("wish", "mode", "deterministic"), [("default", "default", True), ("graphs", "reduce-overhead", False)])
def test_the_compiler_is_as_deterministic_as_the_machine_and_compiles_each_size_by_itself(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, wish: Literal["default", "graphs"], mode: str, deterministic: bool
) -> None:
    before, told = torch.are_deterministic_algorithms_enabled(), {}

    def compiler(network: nn.Module, **settings: object) -> nn.Module:
        told.update(settings, deterministic=torch._inductor.config.deterministic)
        return network

    monkeypatch.setattr("torch.compile", compiler)
    torch.use_deterministic_algorithms(not deterministic)
    try:
        machine.set_determinism(deterministic)
        beginning.compiled(model_of(nn.Flatten(), spec, channels_last=False), wish, lanes=1)
    finally:
        torch.use_deterministic_algorithms(before)
    assert told == {"mode": mode, "dynamic": False, "deterministic": deterministic}


def test_a_training_whose_graphs_are_captured_learns_the_same(train_params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured graphs run without generated code; `make test-slow` generates it."""
    compiler, backends = torch.compile, []

    def capture(network: nn.Module, *, mode: str, dynamic: bool) -> nn.Module:
        backends.append(mode)
        return compiler(network, backend="aot_eager", dynamic=dynamic)

    monkeypatch.setattr("torch.compile", capture)
    plain, captured = (run(begin(train_params({**steps(8), "train.compile": wish}), prepared))[-1].metrics for wish in ("off", "default"))
    assert backends == ["default"]
    assert captured == pytest.approx(plain, rel=1e-4)


@pytest.fixture(autouse=True)
def restored_limits() -> Iterator[None]:
    """Restore what `compiled` sets. monkeypatch would delete these settings, because the module computes its attributes."""
    limits = {"recompile_limit": 8, "accumulated_recompile_limit": 256, "fail_on_recompile_limit_hit": False, "optimize_ddp": True}
    with torch._dynamo.config.patch(limits):
        yield


def test_every_length_and_size_is_compiled_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some ran uncompiled, a resumed training would compile others, and end in other bytes."""
    compiler, compiled = torch.compile, set()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        compiled.add(next(tensor.shape for tensor in inputs if tensor.dtype == torch.int32))
        return graph.forward

    monkeypatch.setattr("torch.compile", lambda network, *, dynamic, **_: compiler(network, backend=backend, dynamic=dynamic))
    prepared = texts.texts()
    forward = beginning.compiled(model_of(nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2)), prepared.spec), "default", lanes=1)
    shapes = {(size, length) for length in range(2, 7) for size in (2, 3)}
    with torch.no_grad():
        for shape in sorted(shapes):
            forward(torch.ones(shape, dtype=torch.int32))
    assert compiled == shapes


@pytest.mark.parametrize(("lanes", "is_whole"), [(2, True), pytest.param(1, False, marks=pytest.mark.slow)])
def test_with_lanes_a_model_is_compiled_as_a_whole_also_where_gradients_are_exchanged(
    train_params, prepared, monkeypatch: pytest.MonkeyPatch, lanes: int, is_whole: bool
) -> None:
    """Cut where a bucket of gradients ends, it would round elsewhere than in one process. With one lane, the cut lets the exchange begin early."""
    compiler, graphs = torch.compile, set()

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.add(str(graph.graph))
        return graph.forward

    monkeypatch.setattr("torch.compile", lambda network, *, dynamic, **_: compiler(network, backend=backend, dynamic=dynamic))
    monkeypatch.setattr("torch.distributed._DEFAULT_FIRST_BUCKET_BYTES", 1)
    params = train_params({**steps(1), "train.compile": "default", "train.lanes": lanes, "train.precision": "bf16", "source.valid": 0.0})
    run(begin(params, prepared))
    alone = graphs.copy()
    graphs.clear()
    torch.compiler.reset()
    with group_of_one("gloo"):
        run(exchanging(begin(params, prepared)))
    assert (graphs == alone) is is_whole


@pytest.mark.slow
def test_with_lanes_two_processes_that_compile_end_in_the_bytes_of_one(tmp_path: Path) -> None:
    """The network has a megabyte of weights, after which DDP begins another bucket."""
    changes = {
        "model": texts.TRANSFORMER | {"width": 128, "depth": 3},
        "train.lanes": 2,
        "train.compile": "default",
        "train.precision": "bf16",
    }
    params, data = preset({**OF_TEXT, **steps(2), **changes}), texts.texts()
    alone, together = (several.train(count, several.Run(params, data, tmp_path / str(count), 2))[0] for count in (1, 2))
    assert same(alone.exported, together.exported)
    assert alone.rows == together.rows
