"""Applies the gradients of a step: always, only if loss and gradients are finite, or through the gradient scaler of fp16."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

Applying = Callable[[Optimizer, Tensor, Tensor | None], Tensor | None]
"""Applies the gradients in the parameters of an optimizer, given the loss and the gradient norm, which is None if it was not measured.

Returns a flag on the device: 1.0 if the step was skipped, else 0.0; or None if no step is ever skipped.
"""


def choose(scaler: torch.amp.GradScaler, *, skip_nonfinite: bool) -> Applying:
    """Return how a training applies its gradients. With a gradient scaler, `skip_nonfinite` has no effect: overflows are skipped anyway."""
    if scaler.is_enabled():
        return partial(scaled, scaler)
    return skipping if skip_nonfinite else plain


def plain(optimizer: Optimizer, _loss: Tensor, _norm: Tensor | None) -> None:
    """Apply the gradients."""
    optimizer.step()


def skipping(optimizer: Optimizer, loss: Tensor, norm: Tensor | None) -> Tensor:
    """Apply the gradients if `loss` and `norm` are finite."""
    assert norm is not None
    # fused optimizers change nothing if this flag is 1, so skipping needs no host synchronisation
    bad = (~torch.isfinite(norm + loss)).float()
    optimizer.found_inf = bad  # type: ignore[attr-defined]
    optimizer.step()
    return bad.double()


def scaled(scaler: torch.amp.GradScaler, optimizer: Optimizer, loss: Tensor, _norm: Tensor | None) -> Tensor:
    """Apply the gradients through `scaler`, which skips the update if a gradient overflowed, that is, if it is not finite."""
    scaler.step(optimizer)
    # the overflow flags have no public accessor; comparing the scale before and after would synchronise with the device
    found = scaler._found_inf_per_device(optimizer)
    scaler.update()
    return torch.stack([flag.to(loss.device) for flag in found.values()]).amax().double()
