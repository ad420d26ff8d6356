"""Builds the fused optimizer that the settings select. Only weights that multiply inputs as matrices get weight decay."""

import re
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

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


ParameterGroup = dict[str, Any]
MATRIX_LAYERS = (nn.Linear, _ConvNd, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Linear, convolutional, attention and recurrent layers: all their weights of two or more dimensions are matrices. Subclasses are included."""
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
OTHER_LAYERS = re.compile("norm|embed", re.IGNORECASE)
"""Matches the names of classes whose weights are no matrices, whatever their shape."""
WEIGHT = re.compile(r"[^.]*weight[^.]*(?<!_g)|parametrizations\.[^.]*weight[^.]*\.original1?")
"""Matches the name of a weight relative to its layer, parametrized or not. Does not match weight-norm magnitudes (`weight_g`, `original0`)."""


def build(module: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build one optimizer for all trainable parameters of `module`.

    Only matrices (see `is_matrix`) get weight decay: class tokens, positional embeddings, tables of relative positions and layer scales
    can have two or more dimensions, but get none.

    Each parameter group has a factor `lr_scale`, by which the training loop multiplies the learning rate of the step. All parameters in a
    group have the same `lr_scale` and weight decay, so `settings.groups` and `settings.layer_decay` can lead to more groups.
    """
    groups = groups_of(module, settings)
    trained = [parameter for group in groups for parameter in group["params"]]
    match settings:
        case SgdSettings(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov):
            optimizer_type = ShardedSGD if is_divided(trained[0]) else torch.optim.SGD
            optimizer = optimizer_type(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)
            if momentum:  # torch would leave them uninitialised if the fp16 scaler skips the first step; zeros do not change it
                for parameter in trained:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return optimizer
        case AdamSettings(name=name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon):
            optimizer_class = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return optimizer_class(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)
        case MuonSettings(learning_rate=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights):
            return Muon(groups, lr=learning_rate, nesterov=nesterov, ns_steps=ns_steps, normalize_weights=normalize_weights)


def groups_of(module: nn.Module, settings: OptimizerSettings) -> list[ParameterGroup]:
    """Return the trainable parameters in groups of equal settings: the matrices first, and among them the hidden ones.

    Hidden weights (see `matrix_ids`) are those that Muon orthogonalises; other optimizers have none. With Muon, all other parameters have
    SGD's momentum (`settings.sgd_momentum`), and the first and the last weights a learning-rate scale of their own
    (`settings.outer_lr_scale`). Within a group, the parameters keep their order.
    """
    adjusted = parameter_groups.adjustments(module, settings)
    matrices, inner, transposed = matrix_ids(module)
    groups: dict[tuple[tuple[bool, bool, bool], Adjustment], ParameterGroup] = {}
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
            momentum = settings.momentum if hidden else settings.sgd_momentum
            of_muon = {"hidden": hidden, "transposed": id(parameter) in transposed, "momentum": momentum}
            if decays and not hidden:
                lr_scale = settings.outer_lr_scale
        found = {"weight_decay": weight_decay, "lr_scale": lr_scale * adjustment.lr_scale, **of_muon}
        kind = (not decays, not of_muon.get("hidden"), of_muon.get("transposed", False))
        groups.setdefault((kind, adjustment), {"params": [], **found})["params"].append(parameter)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def matrix_ids(module: nn.Module) -> tuple[set[int], set[int], set[int]]:
    """Return the ids of all matrices, of the hidden ones among them, and of those that are stored as (inputs, outputs).

    To find the hidden ones, matrices and the weights of embeddings, frozen or not, are listed in the order of `module.modules()`. Every
    matrix is hidden, except the first and the last weight of this list. A weight that is shared with an embedding is in no set.
    """
    weights = [
        (id(parameter), layer)
        for layer in module.modules()
        for name, parameter in layer.named_parameters()
        if WEIGHT.fullmatch(name) and (isinstance(layer, EMBEDDINGS) or is_matrix(layer, parameter))
    ]
    matrices = {weight for weight, _ in weights} - {weight for weight, layer in weights if isinstance(layer, EMBEDDINGS)}
    ends = {weight for weight, _ in (*weights[:1], *weights[-1:])}
    # the linear layer of GPT-2 is the Conv1D of the library transformers, which is not imported for this
    transposed = {weight for weight, layer in weights if any(kind.__name__ == "Conv1D" for kind in type(layer).__mro__)}
    return matrices, matrices - ends, transposed


def is_matrix(layer: nn.Module, weight: nn.Parameter) -> bool:
    """Return True if `weight`, a parameter of `layer` whose name matches WEIGHT, multiplies the inputs as a matrix.

    In layers of libraries and of your own that are not in MATRIX_LAYERS, every such parameter does that has two dimensions above 1, except
    in norms and embeddings. Tokens, positions, tables, biases and layer scales are not called weights.
    """
    if isinstance(layer, MATRIX_LAYERS):
        return weight.ndim >= 2
    return sum(size > 1 for size in weight.shape) >= 2 and not OTHER_LAYERS.search(type(layer).__name__)
