"""Builds the fused optimizer that the settings select, and the groups of parameters that it updates alike.

Only weights that multiply inputs as matrices get weight decay. Patterns of names select parameters that are frozen, or that have a
learning-rate scale and a weight decay of their own.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown
from pipeline.train.blocks import blocks
from pipeline.train.engine.muon import Muon, fused_sgd, gradients
from pipeline.train.group.sharding import is_divided, local
from pipeline.train.optimizer_params import AdamSettings, CommonOptimizerSettings, MuonSettings, OptimizerSettings, SgdSettings

ParameterGroup = dict[str, Any]
MATRIX_LAYERS = (nn.Linear, _ConvNd, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Linear, convolutional, attention and recurrent layers: all their weights of two or more dimensions are matrices. Subclasses are included."""
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
OTHER_LAYERS = re.compile("norm|embed", re.IGNORECASE)
"""Matches the names of classes whose weights are no matrices, whatever their shape."""
WEIGHT = re.compile(r"[^.]*weight[^.]*(?<!_g)|parametrizations\.[^.]*weight[^.]*\.original1?")
"""Matches the name of a weight relative to its layer, parametrized or not. Does not match weight-norm magnitudes (`weight_g`, `original0`)."""
HEAD = re.compile(r"(head|heads|fc|classifier|features\.norm5)\.")
"""Matches the beginning of the names of the head's parameters, in a network with `block_names`. `norm5` is DenseNet's last norm."""
FREEZE, MOST_NAMED = "train.freeze", 3


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


class Adjustment(NamedTuple):
    """Holds what `optimizer.groups` and `optimizer.layer_decay` change for one parameter.

    The learning rate of the parameter is multiplied by `lr_scale`. If `weight_decay` is not None, it replaces the parameter's weight decay,
    unless that is 0 for its kind, as for biases.
    """

    lr_scale: float = 1.0
    weight_decay: float | None = None


def groups_of(module: nn.Module, settings: OptimizerSettings) -> list[ParameterGroup]:
    """Return the trainable parameters in groups of equal settings: the matrices first, and among them the hidden ones.

    Hidden weights (see `matrix_ids`) are those that Muon orthogonalises; other optimizers have none. With Muon, all other parameters have
    SGD's momentum (`settings.sgd_momentum`), and the first and the last weights a learning-rate scale of their own
    (`settings.outer_lr_scale`). Within a group, the parameters keep their order.
    """
    adjusted = adjustments(module, settings)
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


def adjustments(network: nn.Module, settings: CommonOptimizerSettings) -> dict[int, Adjustment]:
    """Return the adjustment of each trainable parameter, by the id of the parameter.

    The first of `settings.groups` with a pattern that matches the name of a parameter gives its `lr_scale` and `weight_decay`. If
    `settings.layer_decay` is set, `lr_scale` is also multiplied by `layer_decay ** depth` (see `depths`).

    Raises Refusal if a pattern matches no parameter, or if all parameters that a group matches are frozen or in earlier groups. Raises
    Refusal if `layer_decay` is set and the network has no blocks.
    """
    names = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    found = {name: Adjustment() for name in names}
    free = set(names)
    for number, group in enumerate(settings.groups):
        key = f"optimizer.groups.{number}.patterns"
        members = matching(group.patterns, [name for name, _ in network.named_parameters()], key) & free
        if not members:
            raise Refusal(
                f"{key}: every parameter that matches is frozen or belongs to an earlier group: remove this group, or put it first in optimizer.groups"
            )
        found |= dict.fromkeys(members, Adjustment(group.lr_scale, group.weight_decay))
        free -= members
    if settings.layer_decay is not None:
        depth = depths(network)
        for name, parameter in names.items():
            adjusted = found[name]
            found[name] = adjusted._replace(lr_scale=adjusted.lr_scale * settings.layer_decay ** depth[id(parameter)])
    return {id(names[name]): adjusted for name, adjusted in found.items()}


def depths(network: nn.Module) -> dict[int, int]:
    """Return the depth of each parameter by its id: the number of blocks from the output, as timm counts it.

    With n blocks, the head has depth 0, the last block 1, the first block n, and what stands before the first block n + 1. Where the
    network has the attribute `parameter_layers`, it is a dict from the name of each parameter to its layer (see `named_layers`). Where it
    has the attribute `block_names`, that determines the blocks; else `blocks` does.
    "Before" and "after" refer to the order of `network.parameters()`. Raises Refusal if the network has no blocks.
    """
    if named := cast("dict[str, int] | None", getattr(network, "parameter_layers", None)):
        return {id(parameter): max(named.values()) - named[name] for name, parameter in network.named_parameters()}
    pattern = getattr(network, "block_names", None)
    layers, num_blocks = nested_layers(network) if pattern is None else named_layers(network, cast("str", pattern))
    if not num_blocks:
        raise Refusal(
            "optimizer.layer_decay: this model has no blocks, and this setting lowers the learning rate block by block: write `optimizer.layer_decay: null`"
        )
    return {parameter: num_blocks + 1 - layer for parameter, layer in layers.items()}


def named_layers(network: nn.Module, block_names: str) -> tuple[dict[int, int], int]:
    """Return the layer of each parameter by its id, and the number of blocks.

    Layer 0 is what stands before the first block. Then follow the blocks and the head. A block begins at the first parameter whose name
    begins with a new match of `block_names`, a regular expression. It ends where the next block or the head (see `HEAD`) begins.
    """
    result: dict[int, int] = {}
    begun: list[str] = []
    for name, parameter in network.named_parameters():
        found = re.match(block_names, name)
        if found and found[0] not in begun[-1:]:
            begun.append(found[0])
        result[id(parameter)] = len(begun) + bool(HEAD.match(name))
    return result, len(begun)


def nested_layers(network: nn.Module) -> tuple[dict[int, int], int]:
    """Return what `named_layers` returns, for the blocks that `blocks` finds.

    Parameters between two blocks belong to the earlier block, and those after the last block to the head.
    """
    found = blocks(network)
    owner = {id(parameter): number for number, block in reversed(list(enumerate(found, 1))) for parameter in block.parameters()}
    result: dict[int, int] = {}
    begun = 0
    for parameter in network.parameters():
        number = owner.get(id(parameter))
        begun = max(begun, number or 0)
        result[id(parameter)] = number or begun + (begun == len(found))
    return result, len(found)


def matching(patterns: Iterable[str], names: Sequence[str], key: str) -> set[str]:
    """Return the names that match at least one of `patterns`.

    Raises Refusal if a pattern matches no name. The message contains the names nearest to the pattern, and `key`, the key in params.yaml
    under which the patterns are written.
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise Refusal(f"{key}: {shown(pattern)} matches no parameter: the nearest are {', '.join(nearest(pattern, names))}")
        found |= matched
    return found


def nearest(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the three candidates most similar to `pattern`. A candidate is a parameter name, or `MODULE.*` for all names below a module."""
    modules = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    return get_close_matches(pattern, [*(f"{module}.*" for module in sorted(modules)), *names], n=3, cutoff=0)


def rates_summary(network: nn.Module, optimizer: torch.optim.Optimizer, learning_rate: float) -> str:
    """Describe the range of the peak learning rates of `network`'s parameters, for a message. `learning_rate` is `optimizer.learning_rate`."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = sorted((group for group in optimizer.param_groups if group["params"]), key=lambda group: group["lr_scale"])
    ends = [f"{learning_rate * group['lr_scale']:.2g} ({names[id(group['params'][0])]})" for group in (groups[0], groups[-1])]
    return f"learning rates from {' to '.join(ends)}"


def freeze(network: nn.Module, patterns: Sequence[str], *, untrained: Collection[str] = ()) -> list[nn.Module]:
    """Freeze the parameters whose names match `patterns`. Return the BatchNorm layers whose running statistics must stay unchanged.

    A BatchNorm layer is returned if all its parameters are frozen, at least one of them by a pattern. A BatchNorm layer without parameters (`affine=False`) is returned if the
    name of its `running_mean` matches a pattern. Autograd computes no gradient for the layers below the first trained parameter.

    `untrained` contains the names of the tensors that still have random values, because the file of `model.weights` does not supply them.
    Raises Refusal if a pattern matches no parameter, if a frozen parameter is in `untrained`, or if no parameter is left to train.
    """
    parameters = dict(network.named_parameters())
    frozen = matching(patterns, list(parameters), FREEZE)
    if lost := sorted(frozen.intersection(untrained)):
        raise Refusal(
            f"{FREEZE}: freezes {', '.join(lost[:MOST_NAMED])}, which the file of model.weights does not supply for this data, "
            "so they would keep their random initial values: change train.freeze so that no pattern matches them"
        )
    for name in frozen:
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise Refusal(f"{FREEZE}: freezes every parameter, so nothing is trained: let the patterns leave out at least the last layer")
    return [module for name, module in network.named_modules() if isinstance(module, _BatchNorm) and keeps(name, module, frozen, patterns)]


def keeps(name: str, norm: nn.Module, frozen: set[str], patterns: Sequence[str]) -> bool:
    """Return True if the running statistics of the BatchNorm layer `norm` must stay unchanged (see `freeze`).

    `name` is the name of the layer in the network. `frozen` contains the names of all frozen parameters.
    """
    prefix = f"{name}." if name else ""
    own = {f"{prefix}{key}": parameter for key, parameter in norm.named_parameters()}
    if own:  # one may be frozen by the model itself, as the scale of airbench's norms is
        return not frozen.isdisjoint(own) and not any(parameter.requires_grad for parameter in own.values())
    return any(fnmatchcase(f"{prefix}running_mean", pattern) for pattern in patterns)


def frozen_summary(network: nn.Module) -> str:
    """Describe how much of the network is trained, for a message."""
    parameters = list(network.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    counts = [sum(parameter.numel() for parameter in some) for some in (trained, parameters)]
    return f"{len(trained)} of {len(parameters)} parameters are trained, {counts[0]:,} of {counts[1]:,} values"
