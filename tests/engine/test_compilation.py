"""What the compiler is told before it compiles."""

from typing import Literal

import pytest
import torch
import torch._inductor.config
from torch import nn

from pipeline.engine import compilation
from pipeline.runtime import machine
from pipeline.spec import Spec
from tests.engine.building import model_of


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
