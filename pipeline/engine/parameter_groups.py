"""Learning-rate scale and weight decay of single parameters: `optimizer.groups` and `optimizer.layer_decay`."""

from typing import NamedTuple

from torch import nn

from pipeline.engine.activation_checkpointing import blocks
from pipeline.engine.parameter_names import matching
from pipeline.params.optimizer import CommonOptimizerSettings
from pipeline.refusal import Refusal


class Adjustment(NamedTuple):
    """Holds what `optimizer.groups` and `optimizer.layer_decay` change for one parameter.

    The learning rate of the parameter is multiplied by `lr_scale`. If `weight_decay` is not None, it replaces the parameter's weight decay,
    unless that is 0 for its kind, as for biases.
    """

    lr_scale: float = 1.0
    weight_decay: float | None = None


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
    """Return the depth of each parameter by its id, as BEiT counts it (https://arxiv.org/abs/2106.08254).

    The depth counts blocks from the output. With n blocks (see `activation_checkpointing.blocks`), the parameters after the last block (the
    head) have depth 0, those of the last block 1, those of the first block n, and those before the first block n + 1. A parameter between
    two blocks has the depth of the earlier block. "Before" and "after" refer to the order of `network.parameters()`. Raises Refusal if the
    network has no blocks.
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
