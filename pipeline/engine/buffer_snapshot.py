"""Takes a snapshot of the BatchNorm statistics before a step, and restores it if the step is retried or skipped."""

import torch
from torch import Tensor, nn


class BufferSnapshot:
    """A copy of all buffers of a module. Copying takes one foreach operation per dtype."""

    def __init__(self, module: nn.Module) -> None:
        self.live = sorted(module.buffers(), key=lambda buffer: str(buffer.dtype))
        self.kept = [torch.empty_like(buffer) for buffer in self.live]
        types = [buffer.dtype for buffer in self.live]
        # a foreach copy of mixed dtypes falls back to one copy per tensor
        self.groups = [slice(types.index(kind), types.index(kind) + types.count(kind)) for kind in dict.fromkeys(types)]

    @torch.no_grad()
    def keep(self) -> None:
        """Copy the module's buffers into the snapshot."""
        for group in self.groups:
            torch._foreach_copy_(self.kept[group], self.live[group])

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore the module's buffers from the snapshot."""
        for group in self.groups:
            torch._foreach_copy_(self.live[group], self.kept[group])

    @torch.no_grad()
    def put_back_where(self, undone: Tensor) -> None:
        """Restore the module's buffers from the snapshot if `undone`, a scalar on the device, is 1.0.

        Does not synchronise with the host.
        """
        is_undone = undone > 0
        for buffer, before in zip(self.live, self.kept, strict=True):
            torch.where(is_undone, before, buffer, out=buffer)
