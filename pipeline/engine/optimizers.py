"""Optimizers from their settings, fused, with weight decay on weights alone."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from pipeline.engine.muon import Muon
from pipeline.params.optimizer import AdamSettings, MuonSettings, OptimizerSettings, SgdSettings

Group = dict[str, Any]


def build(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """One update for all parameters; norms and biases, which have fewer than two dimensions, do not decay.

    The learning rate of a group is that of the step times the group's `factor`.
    """
    every = list(parameters)
    trained = [parameter for parameter in every if parameter.requires_grad]
    weights = {"params": [parameter for parameter in trained if parameter.ndim >= 2], "weight_decay": settings.weight_decay, "factor": 1.0}
    vectors = {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0, "factor": settings.vector_factor}
    groups = [group for group in (weights, vectors) if group["params"]]
    match settings:
        case SgdSettings(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov):
            optimizer = torch.optim.SGD(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)
            if momentum:
                begin_at_rest(optimizer, trained)
            return optimizer
        case AdamSettings(name=name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon):
            kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return kind(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)
        case MuonSettings(learning_rate=learning_rate, nesterov=nesterov, iterations=iterations, normalise=normalise):
            parted = [*part(weights, every, settings), {**vectors, "hidden": False, "momentum": settings.outer_momentum}]
            parted = [group for group in parted if group["params"]]
            return Muon(parted, lr=learning_rate, nesterov=nesterov, iterations=iterations, normalise=normalise)


def begin_at_rest(optimizer: torch.optim.SGD, parameters: Iterable[nn.Parameter]) -> None:
    """Momentum from zero is the same first step; torch makes the buffer empty, and where fp16 skips that step it is never filled."""
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def part(weights: Group, every: Sequence[nn.Parameter], settings: MuonSettings) -> tuple[Group, Group]:
    """The hidden weights, and those of the first and the last layer of all; a first layer that is frozen is the first all the same."""
    inner = {id(parameter) for parameter in [parameter for parameter in every if parameter.ndim >= 2][1:-1]}
    hidden = [parameter for parameter in weights["params"] if id(parameter) in inner]
    outer = [parameter for parameter in weights["params"] if id(parameter) not in inner]
    return (
        {**weights, "params": hidden, "hidden": True, "momentum": settings.momentum},
        {**weights, "params": outer, "hidden": False, "momentum": settings.outer_momentum, "factor": settings.outer_factor},
    )
