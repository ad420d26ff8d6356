"""Builds the fused optimizer that the settings select. Only the weights of linear, convolutional and similar layers get weight decay."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from pipeline.train.engine import parameter_groups
from pipeline.train.engine.muon import Muon, fused_sgd, gradients
from pipeline.train.engine.parameter_groups import Adjustment
from pipeline.train.group.sharding import is_divided, local
from pipeline.train.optimizer_params import AdamSettings, MuonSettings, OptimizerSettings, SgdSettings


class ShardedSGD(torch.optim.SGD):
    """Applies torch's fused SGD to the shards of this process. torch does not apply it to divided parameters itself."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        assert closure is None
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            buffers = [local(self.state[parameter]["momentum_buffer"]) if group["momentum"] else None for parameter in trained]
            fused_sgd(list(map(local, trained)), list(map(local, gradients(trained))), buffers, group)


Group = dict[str, Any]
MATRIX_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)
"""Linear, convolutional, attention and recurrent layers: their weights multiply inputs as matrices. Subclasses are included."""
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
WEIGHT = re.compile(r"[^.]*weight[^.]*(?<!_g)|parametrizations\.[^.]*weight[^.]*\.original1?")
"""Matches the name of a weight relative to its layer, parametrized or not. Does not match weight-norm magnitudes (`weight_g`, `original0`)."""


def build(module: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build one optimizer for all trainable parameters of `module`.

    Only the weights of MATRIX_LAYERS, such as Linear, get weight decay. The class of the layer that owns a parameter decides this, not the
    number of dimensions: class tokens, positional embeddings, tables of relative positions and layer scales can have two or more
    dimensions, but get no weight decay.

    Each parameter group has a factor `lr_scale`, by which the training loop multiplies the learning rate of the step. All parameters in a
    group have the same `lr_scale` and weight decay, so `settings.groups` and `settings.layer_decay` can lead to more groups.
    """
    groups = groups_of(module, settings)
    trained = [parameter for group in groups for parameter in group["params"]]
    match settings:
        case SgdSettings(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov):
            optimizer_type = ShardedSGD if is_divided(trained[0]) else torch.optim.SGD
            optimizer = optimizer_type(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)
            if momentum:
                zero_momentum(optimizer, trained)
            return optimizer
        case AdamSettings(name=name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon):
            optimizer_class = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return optimizer_class(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)
        case MuonSettings(learning_rate=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights):
            return Muon(groups, lr=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights)


def groups_of(module: nn.Module, settings: OptimizerSettings) -> list[Group]:
    """Return the trainable parameters in groups of equal settings: the weights of MATRIX_LAYERS first, and among them the hidden ones.

    Hidden weights (see `matrix_ids`) are those that Muon orthogonalises; other optimizers have none. With Muon, all other parameters have
    SGD's momentum (`settings.sgd_momentum`), and the first and the last weights a learning-rate scale of their own
    (`settings.outer_lr_scale`). Within a group, the parameters keep their order.
    """
    adjusted = parameter_groups.adjustments(module, settings)
    matrices, inner = matrix_ids(module)
    groups: dict[tuple[tuple[bool, bool], Adjustment], Group] = {}
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        decays = id(parameter) in matrices
        lr_scale, weight_decay = (1.0, settings.weight_decay) if decays else (settings.bias_lr_scale, 0.0)
        adjustment = adjusted[id(parameter)]
        of_muon: dict[str, Any] = {}
        if decays and adjustment.weight_decay is not None:
            weight_decay = adjustment.weight_decay
        if isinstance(settings, MuonSettings):
            hidden = id(parameter) in inner
            of_muon = {"hidden": hidden, "momentum": settings.momentum if hidden else settings.sgd_momentum}
            if decays and not hidden:
                lr_scale = settings.outer_lr_scale
        found = {"weight_decay": weight_decay, "lr_scale": lr_scale * adjustment.lr_scale, **of_muon}
        kind = (not decays, not of_muon.get("hidden"))
        groups.setdefault((kind, adjustment), {"params": [], **found})["params"].append(parameter)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def zero_momentum(optimizer: torch.optim.SGD, parameters: Iterable[nn.Parameter]) -> None:
    """Initialise the momentum buffers of `parameters` with zeros. This does not change the result of the first step.

    Without this, torch allocates uninitialised buffers at the first step. They stay uninitialised if the fp16 scaler skips that step.
    """
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def matrix_ids(module: nn.Module) -> tuple[set[int], set[int]]:
    """Return the ids of all weights of MATRIX_LAYERS, such as Linear, and the ids of the hidden weights among them.

    To find the hidden weights, the weights of MATRIX_LAYERS and embeddings, frozen or not, are listed in the order of `module.modules()`.
    Every weight of MATRIX_LAYERS is hidden, except the first and the last weight of this list. Weights with fewer than two dimensions are
    left out. A weight that is shared with an embedding is in neither set.
    """
    layers = [
        (id(parameter), isinstance(layer, MATRIX_LAYERS))
        for layer in module.modules()
        if isinstance(layer, (*MATRIX_LAYERS, *EMBEDDINGS))
        for name, parameter in layer.named_parameters()
        if WEIGHT.fullmatch(name) and parameter.ndim >= 2
    ]
    matrices = {weight for weight, _ in layers} - {weight for weight, is_matrix in layers if not is_matrix}
    ends = {weight for weight, _ in (*layers[:1], *layers[-1:])}
    return matrices, matrices - ends
