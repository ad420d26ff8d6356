"""A training in memory that is measured in tests."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.inference.machine import Machine
from pipeline.inference.networks import Model
from pipeline.train.params import TrainParams

CPU = Machine(torch.device("cpu"), 1)
LOOP = {"train.batch_size": 16, "train.micro_batch_size": 16}


@pytest.fixture
def params(train_params) -> TrainParams:
    return train_params(LOOP)


@pytest.fixture
def before_each_forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[torch.Tensor], Any]], None]:
    """`before_each_forward(work)`: let each forward pass of every model call `work(inputs)` first."""
    forward = Model.forward

    def replace(work: Callable[[torch.Tensor], Any]) -> None:
        def slowed(self: Model, inputs: torch.Tensor) -> torch.Tensor:
            work(inputs)
            return forward(self, inputs)

        monkeypatch.setattr(Model, "forward", slowed)

    return replace
