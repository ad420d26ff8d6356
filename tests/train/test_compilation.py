"""What the compiler is told before it compiles."""

from collections.abc import Callable, Iterator
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
from tests.train.engine.building import begin, model_of, run, steps


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
        beginning.compiled(model_of(nn.Flatten(), spec, channels_last=False), wish)
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
    limits = {"recompile_limit": 8, "accumulated_recompile_limit": 256, "fail_on_recompile_limit_hit": False}
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
    forward = beginning.compiled(model_of(nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2)), prepared.spec), "default")
    shapes = {(size, length) for length in range(2, 7) for size in (2, 3)}
    with torch.no_grad():
        for shape in sorted(shapes):
            forward(torch.ones(shape, dtype=torch.int32))
    assert compiled == shapes
