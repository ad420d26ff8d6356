"""The time of a training is estimated where it can be, and never stops what asks for it."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.inference import networks
from pipeline.tools import training_time
from tests.train.engine.building import steps


class Branching(nn.Module):
    """Asks for a value of its inputs, as a network may that was never built for the device meta."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.mean().item() > 0 else -inputs


def test_the_time_grows_with_the_steps_and_a_network_that_needs_values_has_none(train_params, prepared, monkeypatch) -> None:
    short, long = (training_time.expected_s(train_params(steps(count)), prepared.spec, {"train": 50}) for count in (10, 40))
    assert short is not None
    assert long == pytest.approx(4 * short)
    monkeypatch.setattr(networks, "build_on_meta", lambda *_: Branching())
    assert Branching()(torch.ones(1)) == 1
    assert training_time.expected_s(train_params({}), prepared.spec, {"train": 50}) is None
