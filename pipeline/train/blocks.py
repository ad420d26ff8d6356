"""Activation checkpointing: blocks discard their activations and recompute them in the backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def apply(network: nn.Module) -> int:
    """Apply activation checkpointing to every block of `network`, and return the number of blocks.

    Results are bit-identical to those without activation checkpointing, also with dropout and BatchNorm.
    """
    found = blocks(network)
    for block in found:
        block.forward = partial(checkpointed_forward, block.forward, block)
    return len(found)


def blocks(network: nn.Module) -> list[nn.Module]:
    """Return the modules to checkpoint: children of a Sequential or ModuleList that have submodules and parameters.

    The blocks themselves are not searched for further blocks. Single layers are left out, because they store only their input anyway.
    """
    if isinstance(network, nn.Sequential | nn.ModuleList):
        return [child for child in network.children() if any(True for _ in child.children()) and any(True for _ in child.parameters())]
    return [block for child in network.children() for block in blocks(child)]


def checkpointed_forward(forward: Any, block: nn.Module, *inputs: Any, **options: Any) -> Any:
    """Call `forward`, the original forward method of `block`, with `inputs` and `options`.

    If `block` is in training mode, the call uses activation checkpointing, and the recomputation freezes the statistics of BatchNorm.
    """
    if not block.training:
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), statistics_kept(block)), **options)


@contextmanager
def statistics_kept(block: nn.Module) -> Iterator[None]:
    """Freeze the running statistics of all BatchNorm layers in `block` during the recomputation.

    The first forward pass has already updated the statistics with this batch.
    """
    norms = [(module, module.momentum, module.num_batches_tracked) for module in block.modules() if isinstance(module, _BatchNorm)]
    for norm, _, _ in norms:
        # a BatchNorm without a counter counts no batches: the first forward pass has already counted this one
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, counted in norms:
            norm.momentum, norm.num_batches_tracked = momentum, counted
