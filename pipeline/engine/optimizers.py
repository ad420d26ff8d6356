"""Optimizers from their settings, fused, with weight decay on weights alone."""

from collections.abc import Iterable

import torch
from torch import nn

from pipeline.params.train import AdamSettings, OptimizerSettings, SgdSettings


def build(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """One fused update for all parameters; norms and biases, which have fewer than two dimensions, do not decay.

    The learning rate of a group is that of the step times the group's `factor`.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "weight_decay": settings.weight_decay, "factor": 1.0},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0, "factor": settings.vector_factor},
    ]
    groups = [group for group in groups if group["params"]]
    match settings:
        case SgdSettings(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov):
            optimizer = torch.optim.SGD(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)
            if momentum:
                begin_at_rest(optimizer, trained)
            return optimizer
        case AdamSettings(name=name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon):
            kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return kind(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)


def begin_at_rest(optimizer: torch.optim.SGD, parameters: Iterable[nn.Parameter]) -> None:
    """Momentum from zero is the same first step; torch makes the buffer empty, and where fp16 skips that step it is never filled."""
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
