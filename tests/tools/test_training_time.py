"""The time of a training is estimated where it can be, and never stops what asks for it."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.core.environment import Environment
from pipeline.inference import networks
from pipeline.tools import training_time
from pipeline.tools.training_time import StepTime
from tests.train.engine.building import steps


class Branching(nn.Module):
    """Asks for a value of its inputs, as a network may that was never built for the device meta."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.mean().item() > 0 else -inputs


def test_a_network_that_needs_values_is_not_counted(train_params, prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    assert training_time.counted(train_params({}), prepared.spec) is not None
    monkeypatch.setattr(networks, "build_on_meta", lambda *_: Branching())
    assert Branching()(torch.ones(1)) == 1
    assert training_time.counted(train_params({}), prepared.spec) is None


@pytest.mark.parametrize(("counted_s", "expected_s"), [(4.0, 4.0), (6.0, 30.0)])
def test_a_short_training_is_not_measured(train_params, prepared, monkeypatch, counted_s: float, expected_s: float) -> None:
    monkeypatch.setattr(training_time, "counted", lambda *_: StepTime(0.0, counted_s / 10))
    monkeypatch.setattr(training_time, "measured", lambda *_: StepTime(0.0, 3.0))
    found = training_time.expected_s(train_params(steps(10)), prepared.spec, {"train": 50}, Environment.read())
    assert found == pytest.approx(expected_s)
