"""BatchNorm's statistics as they were before a step, for a step that is repeated or undone."""

import torch
from torch import Tensor, nn


class Buffers:
    """A copy of a module's buffers, taken in one go a type."""

    def __init__(self, module: nn.Module) -> None:
        self.live = sorted(module.buffers(), key=lambda buffer: str(buffer.dtype))
        self.kept = [torch.empty_like(buffer) for buffer in self.live]
        types = [buffer.dtype for buffer in self.live]
        # a mixed list would be copied one by one
        self.groups = [slice(types.index(kind), types.index(kind) + types.count(kind)) for kind in dict.fromkeys(types)]

    @torch.no_grad()
    def keep(self) -> None:
        for group in self.groups:
            torch._foreach_copy_(self.kept[group], self.live[group])

    @torch.no_grad()
    def put_back(self) -> None:
        for group in self.groups:
            torch._foreach_copy_(self.live[group], self.kept[group])

    @torch.no_grad()
    def put_back_where(self, undone: Tensor) -> None:
        """Where `undone` (1.0 on the device) says so; the host does not know, and does not wait to know."""
        is_undone = undone > 0
        for buffer, before in zip(self.live, self.kept, strict=True):
            torch.where(is_undone, before, buffer, out=buffer)
