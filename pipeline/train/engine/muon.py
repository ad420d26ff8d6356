"""The Muon optimizer: orthogonalised momentum for hidden weights, SGD with momentum for all other parameters.

The method is by Keller Jordan (https://kellerjordan.github.io/posts/muon/); the recipe for convolutions is from his airbench94_muon.py
(https://github.com/KellerJordan/cifar10-airbench). docs/decisions/0008-recipes.md explains why this is not `torch.optim.Muon`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from pipeline.inference.gpu_diagnostics import BF16_CAPABILITY

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Jordan's Newton-Schulz coefficients: they bring singular values to between about 0.7 and 1.2, with the steepest possible slope at 0."""
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Updates parameter groups with `hidden: True` by orthogonalised momentum (Muon), and all other groups by SGD with momentum.

    Like torch's fused optimizers, it supports `found_inf`: if this scalar on the device is 1.0, the step changes nothing and needs no
    host synchronisation. All momentum buffers start at zero. In hidden groups, the buffers have at least float32 precision.
    """

    # with this flag, GradScaler sets `found_inf` on the optimizer instead of reading it on the host
    _step_supports_amp_scaling = True

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, nesterov: bool, ns_steps: int, normalize_weights: bool) -> None:
        super().__init__(groups, {"lr": lr, "nesterov": nesterov, "ns_steps": ns_steps, "normalize_weights": normalize_weights})
        for group in self.param_groups:
            for parameter in group["params"]:
                dtype = torch.promote_types(parameter.dtype, torch.float32) if group["hidden"] else parameter.dtype
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, dtype=dtype)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update. The gradients must already be unscaled."""
        assert closure is None
        # GradScaler sets `grad_scale` only if the gradients are still scaled
        assert getattr(self, "grad_scale", None) is None
        found_inf = getattr(self, "found_inf", None)
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["hidden"]:
                self.sgd_step(trained, group, found_inf)
                continue
            for same_shape in by_shape(trained):
                self.muon_step(same_shape, group, found_inf)

    def sgd_step(self, parameters: list[nn.Parameter], group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Apply torch's fused SGD to `parameters`. Nothing changes if `found_inf` is 1.0."""
        sgd(
            list(parameters),
            [cast("Tensor", parameter.grad) for parameter in parameters],
            [self.state[parameter]["momentum_buffer"] for parameter in parameters],
            fused=True,
            found_inf=found_inf,
            lr=group["lr"],
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            weight_decay=group["weight_decay"],
            dampening=0.0,
            maximize=False,
        )

    def muon_step(self, parameters: list[nn.Parameter], group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Apply Muon to `parameters`, which must all have the same shape. Nothing changes if `found_inf` is 1.0.

        The parameters are stacked into one batch, so that fewer kernels are launched.
        """
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        old_momentum, weights = matrices(buffers), matrices(parameters)
        gradients = matrices([cast("Tensor", parameter.grad) for parameter in parameters])
        momentum = old_momentum.lerp(gradients, 1 - group["momentum"])
        update = orthogonalized(gradients.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum, group["ns_steps"])
        rows, columns = weights.shape[1:]
        step_size = group["lr"] * math.sqrt(max(1.0, rows / columns))
        start = normalized(weights) if group["normalize_weights"] else weights * (1 - group["lr"] * group["weight_decay"])
        new_weights = start - step_size * update
        write(buffers, momentum if found_inf is None else torch.where(found_inf > 0, old_momentum, momentum))
        write(parameters, new_weights if found_inf is None else torch.where(found_inf > 0, weights, new_weights))


def by_shape(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group the parameters by shape, dtype and device. Within a group, the order is that of `parameters`."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.shape, parameter.dtype, parameter.device), []).append(parameter)
    return list(groups.values())


def matrices(tensors: Sequence[Tensor]) -> Tensor:
    """Stack n weights (outputs, ...) into matrices (n, outputs, columns), in at least float32.

    All dimensions after the first are flattened into columns. A convolution thus becomes a matrix that multiplies image patches.
    """
    stacked = torch.stack([tensor.flatten(1) for tensor in tensors])
    return stacked.to(torch.promote_types(stacked.dtype, torch.float32))


def write(tensors: Sequence[Tensor], values: Tensor) -> None:
    """Copy each matrix of `values` (n, rows, columns) into the tensor at the same index, in place."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value.view(tensor.shape))


def normalized(weights: Tensor) -> Tensor:
    """Return `weights` (n, rows, columns) with each matrix rescaled to Frobenius norm sqrt(rows).

    An update has a norm of about the learning rate times sqrt(rows). With this rescaling, the learning rate is thus the relative size of
    the update.
    """
    return weights / norms(weights) * math.sqrt(weights.shape[1])


def orthogonalized(batch: Tensor, ns_steps: int) -> Tensor:
    """Bring all singular values of each matrix in `batch` (n, rows, columns) near 1, and return the result in the dtype of `batch`.

    Applies `ns_steps` Newton-Schulz iterations.
    """
    a, b, c = NS_COEFFICIENTS
    tall = batch.shape[1] > batch.shape[2]
    # transpose tall matrices: x @ x.mT is then as small as possible
    x = (batch.mT if tall else batch).to(ns_dtype(batch))
    x = x / norms(x)
    for _ in range(ns_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(batch.dtype)


def norms(batch: Tensor) -> Tensor:
    """Return the Frobenius norm of each matrix in `batch`, but at least SMALLEST_NORM, as a tensor (n, 1, 1)."""
    return torch.clamp(batch.norm(dim=(1, 2), keepdim=True), min=SMALLEST_NORM)


def ns_dtype(batch: Tensor) -> torch.dtype:
    """Return the dtype of the Newton-Schulz iteration: bf16 on a GPU that supports bf16, else the dtype of `batch`.

    Bf16 is precise enough, but slow on devices that emulate it.
    """
    if batch.device.type == "cuda" and torch.cuda.get_device_capability(batch.device) >= BF16_CAPABILITY:
        return torch.bfloat16
    return batch.dtype
