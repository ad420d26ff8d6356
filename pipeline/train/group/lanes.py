"""Adds the gradients of the lanes of a batch, in one process or in several that train together.

A batch is cut into lanes of equal size. Each lane accumulates the gradients of its micro-batches. The gradients of the lanes are added
along a fixed binary tree: neighbours first, then the sums of neighbours, and so on. Each process computes an equal number of neighbouring
lanes, which is a subtree. So the order of the additions, and thereby every bit of the result, is the same for every number of processes.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from pipeline.inference.batches.blocks import WHOLE, Share
from pipeline.inference.networks import Model
from pipeline.inference.precision import ChosenPrecision
from pipeline.inference.tensor_file import Tensors
from pipeline.train.group.processes import Group


class BufferSnapshot:
    """A copy of all buffers of a module. The buffers are copied as bytes, so that one foreach operation copies all of them."""

    def __init__(self, module: nn.Module) -> None:
        self.live = [as_bytes(buffer) for buffer in module.buffers() if buffer.numel()]
        self.kept, self.flat_kept = self.room()
        self.current, self.flat_current = self.room()

    def room(self) -> tuple[list[Tensor], Tensor]:
        """Return memory for all buffers: for each buffer, and all of it as one tensor."""
        sizes = [buffer.numel() for buffer in self.live]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self.live[0].device if self.live else None)
        return list(torch.split(flat, sizes)), flat

    def keep(self) -> None:
        """Copy the module's buffers into the snapshot."""
        if self.live:
            torch._foreach_copy_(self.kept, self.live)

    def put_back(self) -> None:
        """Restore the module's buffers from the snapshot."""
        if self.live:
            torch._foreach_copy_(self.live, self.kept)

    def put_back_where(self, undone: Tensor) -> None:
        """Restore the module's buffers from the snapshot if `undone`, a scalar on the device, is 1.0.

        Does not synchronise with the host.
        """
        if self.live:
            torch._foreach_copy_(self.current, self.live)
            torch.where(undone > 0, self.flat_kept, self.flat_current, out=self.flat_current)
            torch._foreach_copy_(self.live, self.current)


def as_bytes(buffer: Tensor) -> Tensor:
    """Return the bytes of `buffer` in the order of memory, such as channels_last, as a view (n,). Raises RuntimeError if it has gaps."""
    by_stride = sorted(range(buffer.ndim), key=buffer.stride, reverse=True)
    return buffer.detach().permute(by_stride).view(-1).view(torch.uint8)


Sums = tuple[Tensor, dict[str, Tensor]]
"""The loss of a lane, and the sums that `Objective.sums` returns, by name."""


class OneLane:
    """The batch as one lane in one process, the default: nothing is divided or exchanged."""

    share = WHOLE
    """The share of this process in every batch."""

    def place(self, model: Model, device: torch.device, precision: ChosenPrecision) -> None:  # noqa: ARG002
        """Move `model` to `device`."""
        model.to(device)

    def begin(self, network: nn.Module, before: BufferSnapshot) -> None:
        """Begin to train `network`. `before` is the snapshot of the buffers that is made before each step."""

    def wrap(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return `forward`, the model, perhaps compiled, wrapped so that its backward pass exchanges gradients with the other processes, while it is still running."""
        return forward

    def summed(self, gradients: Callable[[int], Sums]) -> Sums:
        """Call `gradients(lane)` for each lane of this process, from 0, and leave the gradients of all lanes in the parameters.

        Return the loss and the sums of the whole batch. Of several lanes, these are in float64.
        """
        return gradients(0)

    def purpose(self, lane: int) -> tuple[str | int, ...]:
        """Return the purpose for which dropout draws in `lane` of this process. The first of all lanes draws as in a training without lanes."""
        number = self.share.number * self.share.lanes + lane
        return ("lane", number, "step") if number else ("step",)

    def syncing(self, lane: int, *, is_last_part: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context for a forward and backward pass. Only the last pass of the step exchanges gradients."""
        return nullcontext()

    def begin_again(self, step: int, micro_batch_size: int) -> None:
        """Forget the gradients of earlier lanes after an OOM, so that `step` can be repeated with smaller micro-batches (see `Group.restart`)."""

    def norm(self, tensors: list[Tensor], norm_type: float = 2.0) -> Tensor:
        """Return the norm of all `tensors`, as a scalar on the device. It is the same in all processes."""
        return torch.nn.utils.get_total_norm(tensors, norm_type)

    def copies(self, tensors: Tensors) -> Tensors:
        """Return copies of `tensors`. All processes must call this. Copies of divided tensors are on the host, and only in the first process."""
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}


ONE_LANE = OneLane()


class Lanes(OneLane):
    """The lanes that this process computes, and the exchange of gradients with the other processes.

    `fixed_order` is False if `train.lanes` is 1 and several processes train. Each of them then computes one lane, and the backend, such as
    NCCL, adds their gradients in its own order, which is faster.
    """

    def __init__(self, group: Group, lanes: int = 1) -> None:
        self.group, self.fixed_order = group, lanes > 1
        self.own = max(1, lanes // group.size)
        self.share = Share(group.rank, group.size, self.own)

    def begin(self, network: nn.Module, before: BufferSnapshot) -> None:
        self.network = network
        self.parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        persistent = network.state_dict().keys()
        self.buffers = [buffer for name, buffer in network.named_buffers() if name in persistent]
        self.before, self.after_first = before, BufferSnapshot(network)
        self.pending: list[dict[int, Tensor]] = []
        """The gradients of earlier lanes of this process, added as far as the tree allows. Each is a dict by the id of the parameter."""
        self.wrapped: DistributedDataParallel | None = None

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """Return the CUDA stream on which gradients are exchanged, beside the backward pass."""
        return torch.cuda.Stream(self.parameters[0].device)  # type: ignore[no-untyped-call]  # untyped in torch

    def wrap(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        if self.group.size == 1:
            return forward
        device = self.parameters[0].device
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the new name of `broadcast_buffers` is unknown to torch before 2.15
            self.wrapped = DistributedDataParallel(
                cast("nn.Module", forward),
                device_ids=[device] if device.type == "cuda" else None,
                broadcast_buffers=False,  # `share_buffers` does it, once a step
                gradient_as_bucket_view=True,
            )
        self.wrapped.register_comm_hook(self, added_in_order if self.fixed_order else added_by_backend)
        return self.wrapped

    def summed(self, gradients: Callable[[int], Sums]) -> Sums:
        """Do as in one lane. Between two lanes, the gradients are set aside, and buffers such as the statistics of BatchNorm are those before
        the step. The statistics that remain are those of the first lane of all.
        """
        self.pending.clear()
        lanes: list[Sums] = []
        for lane in range(self.own):
            if lane:
                self.before.put_back()
            lanes.append(gradients(lane))
            if lane == 0 and self.own > 1:
                self.after_first.keep()
            if lane < self.own - 1:
                self.set_aside(lane)
        if self.own > 1:
            self.after_first.put_back()
        if self.wrapped is None:
            used = [parameter for parameter in self.parameters if parameter.grad is not None]
            self.add_pending(used, [cast("Tensor", parameter.grad) for parameter in used])
        self.pending.clear()
        self.share_buffers()
        own = torch.stack([torch.stack([value.double() for value in (loss, *sums.values())]) for loss, sums in lanes])
        loss, *values = self.group.gathered(own).sum(dim=0).unbind()
        return loss, dict(zip(lanes[0][1], values, strict=True))

    def syncing(self, lane: int, *, is_last_part: bool) -> AbstractContextManager[None]:
        if self.wrapped is None or (lane == self.own - 1 and is_last_part):
            return nullcontext()
        return self.wrapped.no_sync()

    def norm(self, tensors: list[Tensor], norm_type: float = 2.0) -> Tensor:
        """Return the norm of all `tensors`. On a GPU, the order of its sums depends on whether a tensor begins at a multiple of 16 bytes. Within
        DDP's buckets, gradients may not, and begin elsewhere after a restart. Copies, here of the absolute values, always do. A maximum has
        no order.
        """
        has_order = tensors[0].is_cuda and norm_type != math.inf
        return super().norm(list(torch._foreach_abs(tensors)) if has_order else tensors, norm_type)

    def begin_again(self, step: int, micro_batch_size: int) -> None:
        self.group.restart(step, micro_batch_size)
        self.pending.clear()

    def set_aside(self, lane: int) -> None:
        """Move the gradients of `lane` to `pending`, and add those of complete subtrees: like carries of a binary counter."""
        gradients = {id(parameter): parameter.grad for parameter in self.parameters if parameter.grad is not None}
        for parameter in self.parameters:
            parameter.grad = None
        while lane & 1:
            earlier = self.pending.pop()
            torch._foreach_add_(list(earlier.values()), [gradients[key] for key in earlier])
            gradients, lane = earlier, lane >> 1
        self.pending.append(gradients)

    def add_pending(self, parameters: Sequence[Tensor], gradients: list[Tensor]) -> None:
        """Add to `gradients` of the last lane, in place, those of the earlier lanes of this process: the smallest subtree first."""
        for earlier in reversed(self.pending):
            torch._foreach_add_(gradients, [earlier[id(parameter)] for parameter in parameters])

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Give all processes the buffers of the first process."""
        if self.group.size == 1:
            return
        for dtype in dict.fromkeys(buffer.dtype for buffer in self.buffers):
            same = [buffer for buffer in self.buffers if buffer.dtype == dtype]
            flat = torch.cat([buffer.reshape(-1) for buffer in same])
            dist.broadcast(flat, 0)
            for buffer, values in zip(same, torch.split(flat, [buffer.numel() for buffer in same]), strict=True):
                buffer.copy_(values.view(buffer.shape))


def added_by_backend(_lanes: Lanes, bucket: GradBucket) -> Future[Tensor]:
    """Add the gradients of a bucket over all processes, in the order of the backend. A communication hook of DDP."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def added_in_order(lanes: Lanes, bucket: GradBucket) -> Future[Tensor]:
    """Add the gradients of a bucket over all lanes along the tree. A communication hook of DDP.

    Each process receives its chunk of the bucket from every other process, adds these chunks along the tree, and sends the sum to all: the
    traffic of one ring all-reduce.
    """
    buffer = bucket.buffer()
    # `bucket.gradients()` ignores the memory order of the parameters, such as channels_last
    lanes.add_pending(bucket.parameters(), [cast("Tensor", parameter.grad) for parameter in bucket.parameters()])
    if buffer.device.type == "cpu":  # gloo would wait for itself if its operations were chained
        added: Future[Tensor] = Future()
        added.set_result(summed_in_order(buffer, lanes.group.size))
        return added
    stream = lanes.stream
    stream.wait_stream(torch.cuda.current_stream(buffer.device))
    added = Future(devices=[buffer.device])
    with torch.cuda.stream(stream):  # the backward pass goes on beside it
        buffer.record_stream(stream)
        added.set_result(summed_in_order(buffer, lanes.group.size))
    return added


def summed_in_order(buffer: Tensor, num_processes: int) -> Tensor:
    """Return the sum of `buffer` over all processes, in `buffer`. The sum of two neighbours is computed first, then that of two sums."""
    length = -(-buffer.numel() // num_processes)
    padded = torch.zeros(num_processes * length, dtype=buffer.dtype, device=buffer.device)
    padded[: buffer.numel()] = buffer
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded)
    dist.all_gather_into_tensor(padded, tree_sum(received.view(num_processes, length)))
    return buffer.copy_(padded[: buffer.numel()])


def tree_sum(rows: Tensor) -> Tensor:
    """Return the sum of the rows of `rows` (n, ...), where n is a power of two: neighbours first, then the sums of neighbours."""
    while len(rows) > 1:
        rows = rows[::2] + rows[1::2]
    return rows[0]
