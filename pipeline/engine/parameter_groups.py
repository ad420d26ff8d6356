"""Learning-rate scale and weight decay of single parameters: `optimizer.groups` and `optimizer.layer_decay`."""

from typing import NamedTuple

from torch import nn

from pipeline.engine.activation_checkpointing import blocks
from pipeline.engine.parameter_names import matching
from pipeline.params.optimizer import CommonOptimizerSettings
from pipeline.refusal import Refusal


class Adjustment(NamedTuple):
    """How a parameter differs from the rest of its group. `weight_decay` is None if the parameter has the weight decay of the group."""

    lr_scale: float = 1.0
    weight_decay: float | None = None


def adjustments(network: nn.Module, settings: CommonOptimizerSettings) -> dict[int, Adjustment]:
    """Return the adjustment of each parameter that is trained, by its id.

    The learning-rate scale is `lr_scale * layer_decay ** depth`, where `lr_scale` is that of the first of `settings.groups` that matches
    the parameter, and `depth` is counted by `depths`. Raises Refusal if no parameter is left for a group, or if the network has no blocks
    and `layer_decay` is set.
    """
    names = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    found = {name: Adjustment() for name in names}
    free = set(names)
    for number, group in enumerate(settings.groups):
        key = f"optimizer.groups.{number}.patterns"
        members = matching(group.patterns, [name for name, _ in network.named_parameters()], key) & free
        if not members:
            raise Refusal(f"{key}: all parameters that match are frozen, or belong to earlier groups: remove this group, or put it first")
        found |= dict.fromkeys(members, Adjustment(group.lr_scale, group.weight_decay))
        free -= members
    if settings.layer_decay is not None:
        depth = depths(network)
        for name, parameter in names.items():
            adjusted = found[name]
            found[name] = adjusted._replace(lr_scale=adjusted.lr_scale * settings.layer_decay ** depth[id(parameter)])
    return {id(names[name]): adjusted for name, adjusted in found.items()}


def depths(network: nn.Module) -> dict[int, int]:
    """Return the depth of each parameter by its id, as BEiT counts it (https://arxiv.org/abs/2106.08254).

    The depth counts from the output: 0 for the parameters after the last block (the head), 1 for the last block, and one more for each
    block before it. The parameters before the first block have one more than that block. A parameter between two blocks has the depth of
    the earlier one. "Before" and "after" refer to the order of `network.parameters()`. Raises Refusal if the network has no blocks.
    """
    found = blocks(network)
    if not found:
        raise Refusal(
            "optimizer.layer_decay: this model has no blocks, and this setting lowers the learning rate block by block: write `optimizer.layer_decay: null`"
        )
    owner = {id(parameter): number for number, block in reversed(list(enumerate(found))) for parameter in block.parameters()}
    result: dict[int, int] = {}
    begun = 0
    for parameter in network.parameters():
        number = owner.get(id(parameter))
        if number is not None:
            begun = max(begun, number + 1)
        is_head = number is None and begun == len(found)
        result[id(parameter)] = 0 if is_head else len(found) - (begun - 1 if number is None else number)
    return result
