"""Divides the weights, their gradients and the optimizer state among the processes that train together, by FSDP2 of torch."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from pipeline.core.refusal import Refusal
from pipeline.inference.networks import Model
from pipeline.inference.precision import ChosenPrecision
from pipeline.inference.tensor_file import Tensors
from pipeline.train.blocks import blocks
from pipeline.train.group.lanes import ONE_LANE, Lanes, OneLane
from pipeline.train.group.processes import Group
from pipeline.train.params import LoopSettings

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

KEY = "train.sharding"
CAST = (nn.Linear, _ConvNd)
"""Layers whose weight is always converted to bf16 by autocast."""


def choose(settings: LoopSettings, group: Group, precision: ChosenPrecision) -> OneLane:
    """Return how the processes of `group` share a batch: as lanes, as lanes of divided weights, or in one process as one lane.

    Raises Refusal if they cannot share it equally, or if the weights cannot be divided.
    """
    settings.refuse_undivided(group.size)
    if settings.sharding == "none" or group.size == 1:
        return Lanes(group, settings.lanes) if settings.lanes > 1 or group.size > 1 else ONE_LANE
    if precision == "fp16":
        raise Refusal("train.precision: fp16 does not work with train.sharding: full: write `train.precision: fp32`, or use newer GPUs")
    return Sharding(group)


class Sharding(Lanes):
    """The part of a batch that this process computes, if `train.sharding` is "full". Each process keeps its shard of every weight.

    FSDP2 gathers the weights of a block when the block is computed, and then drops them. It adds the gradients of all processes, and leaves
    in each process those of its shards. Everything else is done as in other trainings with several processes.
    """

    def place(self, model: Model, device: torch.device, precision: ChosenPrecision) -> None:
        """Move `model` to `device`, block by block, and divide it."""
        self.group.holds_shards = True
        model.preprocessing.to(device)
        shard(model.network, self.group, device, precision)

    def wrap(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return `forward` itself: the network exchanges gradients since `shard` was applied to it."""
        return forward

    def syncing(self, lane: int, *, is_last_part: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Make the next backward pass add its gradients to those of the other processes only if it is the last one of the step."""
        cast("FSDPModule", self.network).set_requires_gradient_sync(is_last_part)
        return nullcontext()

    def norm(self, tensors: list[Tensor], norm_type: float = 2.0) -> Tensor:
        shards = [shard for shard in map(local, tensors) if shard.numel()]
        own = torch.nn.utils.get_total_norm(shards, norm_type).to(self.parameters[0].device, torch.float64)
        norm: Tensor = torch.linalg.vector_norm(self.group.gathered(own.view(1)), norm_type)
        return norm

    def copies(self, tensors: Tensors) -> Tensors:
        return host_copies(tensors, keep=self.group.writes)


def shard(network: nn.Module, group: Group, device: torch.device, precision: ChosenPrecision) -> None:
    """Replace the parameters of `network` by shards on `device`: those of each block (see `blocks`) together, then all others together.

    Only one block at a time is on the device as a whole. Gradients are summed over the processes, not averaged, because each process
    divides its loss by the number of targets of the whole batch. They are exchanged in float32 if weights or autocast are bf16.

    With precision "bf16", autocast stays on, and weights that it converts to bf16 anyway are gathered in bf16, which halves the traffic. All
    other parameters, such as those of norms and embeddings, are gathered in float32. So the numbers are those of a training without
    sharding; FSDP2's own conversion of all parameters and inputs to bf16 would change them, and BatchNorm would refuse them.

    Raises Refusal if the network cannot be divided.
    """
    from torch.distributed.device_mesh import init_device_mesh  # late: these take 0.7 s, and most trainings divide nothing
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    found = blocks(network)
    refuse_undivided(network, found)
    gathered_in_bf16 = {id(module.weight) for module in network.modules() if isinstance(module, CAST)}
    gathered_in_bf16 -= {
        id(parameter) for module in network.modules() if not isinstance(module, CAST) for parameter in module.parameters(recurse=False)
    }
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None,
        reduce_dtype=torch.float32 if precision in ("bf16", "bf16-true") else None,
        cast_forward_inputs=False,
        param_dtype_override_fn=lambda parameter: None if id(parameter) in gathered_in_bf16 else parameter.dtype,
    )
    mesh = init_device_mesh(device.type, (group.size,))
    # with bf16 weights, norms in float32 are divided by themselves: FSDP2 cannot gather two dtypes together
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.affine] if precision == "bf16-true" else []
    for module in (*norms, *found, network):
        # also the network's own weights: they would stay as gathered for a validation, and be out of date at the next
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(enable=True)  # gloo has no other


def refuse_undivided(network: nn.Module, found: list[nn.Module]) -> None:
    """Raise Refusal if a parameter of `network` is a scalar, or is shared between a block and another part of the network."""
    for name, parameter in network.named_parameters():
        if not parameter.ndim:
            raise Refusal(f"{KEY}: the parameter {name} is a scalar and cannot be divided: write `{KEY}: none`, or give it the shape (1,)")
    uses = Counter(id(parameter) for module in network.modules() for parameter in module.parameters(recurse=False))
    for block in found:
        inside = Counter(id(parameter) for module in block.modules() for parameter in module.parameters(recurse=False))
        for name, parameter in block.named_parameters():
            if uses[id(parameter)] != inside[id(parameter)]:
                raise Refusal(f"{KEY}: the parameter {name} of a block is also used outside this block: write `{KEY}: none`")


def is_divided(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return True if this process has only its shard of `tensor`. The class DTensor is not imported to find this out."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Return the shard of `tensor` in this process, or `tensor` itself if it is not divided. The memory is that of `tensor`."""
    return tensor.to_local().detach() if is_divided(tensor) else tensor.detach()


def divided_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return `value`, which all processes have, divided like `parameter`; or `value` itself if `parameter` is not divided."""
    if not is_divided(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor  # late, as in `shard`

    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)


def host_copies(tensors: Tensors, *, keep: bool = True) -> Tensors:
    """Return contiguous copies of `tensors` on the host. Divided tensors are gathered, one at a time: all processes must then call this.

    If `keep` is False, this process only sends its shards, and the result is empty.
    """
    copies = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor().detach() if is_divided(tensor) else tensor.detach()
        if keep:
            copies[name] = torch.empty(whole.shape, dtype=whole.dtype).copy_(whole)
    return copies
