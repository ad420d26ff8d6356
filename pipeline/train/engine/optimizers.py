"""Builds the fused optimizer that the settings select. Only the weights of linear, convolutional and similar layers get weight decay."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from pipeline.train.engine import parameter_groups
from pipeline.train.engine.muon import Muon
from pipeline.train.engine.parameter_groups import Adjustment
from pipeline.train.group.sharding import ShardedSGD, is_divided
from pipeline.train.optimizer_params import AdamSettings, MuonSettings, OptimizerSettings, SgdSettings

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
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    adjusted = parameter_groups.adjustments(module, settings)
    matrices, inner = matrix_ids(module)
    decayed = [parameter for parameter in trained if id(parameter) in matrices]
    undecayed = [parameter for parameter in trained if id(parameter) not in matrices]
    weights = {"params": decayed, "decays": True, "weight_decay": settings.weight_decay, "lr_scale": 1.0}
    others = {"params": undecayed, "decays": False, "weight_decay": 0.0, "lr_scale": settings.bias_lr_scale}
    groups = split_adjusted((weights, others), adjusted)
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
            kinds = (*split_hidden(weights, inner, settings), {**others, "hidden": False, "momentum": settings.sgd_momentum})
            groups = split_adjusted(kinds, adjusted)
            return Muon(groups, lr=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights)


def split_adjusted(groups: Iterable[Group], adjusted: Mapping[int, Adjustment]) -> list[Group]:
    """Split each of `groups` so that all parameters of a new group have the same adjustment. Return the new groups; none is empty.

    `adjusted` maps the id of each parameter to its adjustment: a factor for its learning rate and, perhaps, another weight decay. In groups
    with `decays: False`, for example of biases, the weight decay stays 0. Within a group, the parameters keep their order.
    """
    result = []
    for group in groups:
        parts: dict[Adjustment, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            parts.setdefault(adjusted[id(parameter)], []).append(parameter)
        for (lr_scale, weight_decay), members in parts.items():
            replaced = weight_decay is not None and group["decays"]
            decay = weight_decay if replaced else group["weight_decay"]
            result.append({**group, "params": members, "lr_scale": group["lr_scale"] * lr_scale, "weight_decay": decay})
    return result


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


def split_hidden(weights: Group, inner: set[int], settings: MuonSettings) -> tuple[Group, Group]:
    """Split the parameter group `weights` into two groups: the hidden weights (see `matrix_ids`), and the others.

    `inner` contains the ids of the hidden weights. Muon orthogonalises only the first group. The second group has SGD's momentum
    (`settings.sgd_momentum`) and a learning-rate scale of its own (`settings.outer_lr_scale`).
    """
    hidden = [parameter for parameter in weights["params"] if id(parameter) in inner]
    outer = [parameter for parameter in weights["params"] if id(parameter) not in inner]
    return (
        {**weights, "params": hidden, "hidden": True, "momentum": settings.momentum},
        {**weights, "params": outer, "hidden": False, "momentum": settings.sgd_momentum, "lr_scale": settings.outer_lr_scale},
    )
