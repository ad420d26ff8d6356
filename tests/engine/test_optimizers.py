"""Optimizers: which parameters decay, and that the fused updates are those of the plain formulas."""

import pytest
import torch
from torch import nn

from pipeline.engine import optimizers
from pipeline.params.optimizer import AdamSettings, SgdSettings

SGD = SgdSettings(name="sgd", learning_rate=0.1, weight_decay=0.05, vector_factor=1.0, momentum=0.9, nesterov=True)
ADAM = AdamSettings(name="adam", learning_rate=0.1, weight_decay=0.05, vector_factor=1.0, beta1=0.9, beta2=0.99, epsilon=1e-8)
ADAMW = AdamSettings(name="adamw", learning_rate=0.1, weight_decay=0.05, vector_factor=1.0, beta1=0.9, beta2=0.99, epsilon=1e-8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def test_norms_and_biases_do_not_decay() -> None:
    module = network()
    decay = {
        id(parameter): group["weight_decay"]
        for group in optimizers.build(module.parameters(), ADAMW).param_groups
        for parameter in group["params"]
    }
    assert {name for name, parameter in module.named_parameters() if decay[id(parameter)]} == {"0.weight", "4.weight"}


def test_frozen_parameters_are_not_trained() -> None:
    module = network()
    module[0].requires_grad_(False)
    trained = {id(parameter) for group in optimizers.build(module.parameters(), SGD).param_groups for parameter in group["params"]}
    assert not trained & {id(parameter) for parameter in module[0].parameters()}


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (SGD, lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, fused=False, foreach=False)),
        (ADAM, lambda groups: torch.optim.Adam(groups, lr=0.1, betas=(0.9, 0.99), fused=False, foreach=False)),
        (ADAMW, lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.99), fused=False, foreach=False)),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_fused_updates_follow_the_plain_formulas(settings, reference) -> None:
    ours, plain = network(), network()
    first = optimizers.build(ours.parameters(), settings)
    weights = [p for p in plain.parameters() if p.ndim >= 2]
    others = [p for p in plain.parameters() if p.ndim < 2]
    second = reference([{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}])
    for number in range(4):
        for module, optimizer in ((ours, first), (plain, second)):
            optimizer.zero_grad()
            inputs = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            module(inputs).square().mean().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
