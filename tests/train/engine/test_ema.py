"""Averaged weights against their formula."""

import pytest
import torch
from torch import nn

from pipeline.train.engine.state import EMA


@pytest.mark.parametrize("given", [float, torch.tensor], ids=["on the host", "on the device"])
def test_parameters_and_floating_buffers_trail_and_counters_follow(given) -> None:
    module = nn.BatchNorm1d(3)
    average = EMA(module, decay=0.5)
    expected = module.running_mean.clone()
    for step in range(20):
        module(torch.randn(8, 3))
        average.update(given(average.weight(step)))
        weight = 1 - min(0.5, (1 + step) / (10 + step))
        expected = expected + weight * (module.running_mean - expected)
    assert torch.allclose(average.module.running_mean, expected, rtol=1e-5)
    assert average.module.num_batches_tracked == module.num_batches_tracked == 20
    assert not torch.equal(average.module.running_mean, module.running_mean)
    assert not average.module.training
    assert not any(parameter.requires_grad for parameter in average.module.parameters())


def test_the_first_updates_nearly_copy_so_that_the_start_does_not_weigh() -> None:
    module = nn.Linear(2, 2)
    average = EMA(module, decay=0.999)
    with torch.no_grad():
        module.weight.fill_(1.0)
    average.update(average.weight(0))
    assert average.module.weight.mean().item() > 0.85
