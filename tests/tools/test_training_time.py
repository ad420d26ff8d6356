"""The time of a training is estimated where it can be, and never stops what asks for it."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.inference import networks
from pipeline.tools import training_time


class Branching(nn.Module):
    """Asks for a value of its inputs, as a network may that was never built for the device meta."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.mean().item() > 0 else -inputs


def test_a_network_that_needs_values_is_not_counted(train_params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    assert training_time.counted(train_params({}), prepared.spec) is not None
    monkeypatch.setattr(networks, "build_on_meta", lambda *_: Branching())
    assert Branching()(torch.ones(1)) == 1
    assert training_time.counted(train_params({}), prepared.spec) is None
