"""Keeps an EMA (exponential moving average) of the weights, which is validated and exported instead of the raw weights."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from pipeline.engine.sharding import local

Module = TypeVar("Module", bound=nn.Module)


class EMA(Generic[Module]):
    """A copy of a module whose floating-point parameters and buffers are exponential moving averages of the originals.

    Integer buffers are plain copies. The decay is (1 + step) / (10 + step), but at most `decay`. It is low at first, so that the
    initial weights do not dominate a short training.
    """

    def __init__(self, module: Module, decay: float) -> None:
        self.module = copy.deepcopy(module)
        self.module.requires_grad_(False).eval()
        for layer in self.module.modules():
            if isinstance(layer, nn.RNNBase):
                layer.flatten_parameters()  # cuDNN wants the weights of a layer in one block of memory, and `deepcopy` separates them
        self.decay = decay
        self.follow(module)

    def follow(self, module: Module) -> None:
        """Average the tensors that `module` has now. Call this again after the tensors of `module` and of the copy were replaced by shards."""
        pairs = [
            (trailing, leading)
            for trailing, leading in zip(tensors(self.module), tensors(module), strict=True)
            if leading.requires_grad or not isinstance(leading, nn.Parameter)  # the average of a frozen parameter is this parameter
        ]
        self.trailing = [local(trailing) for trailing, _ in pairs if trailing.is_floating_point()]
        self.leading = [local(leading) for _, leading in pairs if leading.is_floating_point()]
        self.counters = [trailing for trailing, _ in pairs if not trailing.is_floating_point()]
        self.counted = [leading for _, leading in pairs if not leading.is_floating_point()]

    @torch.no_grad()
    def update(self, step: int, skipped: Tensor | None) -> None:
        """Update the averages after step `step`, which is counted from 0.

        `skipped` is a scalar on the device. If it is 1.0, the step was skipped and the averages do not change. None means that the step
        was not skipped.
        """
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        if skipped is None:
            torch._foreach_lerp_(self.trailing, self.leading, weight)
        else:
            weights = {dtype: (weight * (1 - skipped)).to(dtype) for dtype in {tensor.dtype for tensor in self.trailing}}
            for trailing, leading in zip(self.trailing, self.leading, strict=True):
                trailing.lerp_(leading, weights[trailing.dtype])
        if self.counters:
            torch._foreach_copy_(self.counters, self.counted)


def tensors(module: nn.Module) -> list[Tensor]:
    """Return all parameters and buffers of `module`."""
    return [*module.parameters(), *module.buffers()]
