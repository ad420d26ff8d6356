"""What the compiler is told before it compiles."""

from typing import Literal

import pytest
import torch
import torch._inductor.config
from torch import nn

from pipeline.engine import compilation
from pipeline.runtime import machine
from pipeline.spec import Spec
from tests.engine.building import begin, model_of, run


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("wish", "mode"), [("default", "default"), ("graphs", "reduce-overhead")])
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
        compilation.compiled(model_of(nn.Flatten(), spec, channels_last=False), wish)
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
    changes = {"train.epochs": None, "train.steps": 8, "train.report_every_steps": 8, "train.validate_every_steps": 8}
    plain, captured = (run(begin(train_params({**changes, "train.compile": wish}), prepared))[-1].metrics for wish in ("off", "default"))
    assert backends == ["default"]
    assert captured == pytest.approx(plain, rel=1e-4)
