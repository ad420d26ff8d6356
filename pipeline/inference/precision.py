"""Floating-point precision of a training: autocast, gradient scaling for fp16, and bf16 weights."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipeline.core.refusal import Refusal
from pipeline.inference.gpu_diagnostics import BF16_CAPABILITY, FP16_CAPABILITY, dot

if TYPE_CHECKING:
    from pipeline.inference.params import Precision

ChosenPrecision = Literal["bf16", "fp16", "fp32", "bf16-true"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_TORCH_WITH_BF16_SGD = "2.14"
"""The first torch version whose fused SGD updates bf16 weights correctly on a CPU."""


def choose(requested: "Precision", device: torch.device) -> ChosenPrecision:
    """Return the precision to use on `device`, given `requested`, the value of `train.precision`.

    If `requested` is "auto", returns a precision that suits `device`. Raises Refusal if the GPU does not support the requested
    precision. Prints a warning if the requested precision is slow on a CPU.
    """
    if device.type == "cpu":
        if requested not in ("auto", "fp32"):
            print(
                f"warning: train.precision: {requested} is slow on a CPU: write `train.precision: auto` or `fp32`, unless this is a short trial",
                flush=True,
            )
        return "fp32" if requested == "auto" else requested
    capability = torch.cuda.get_device_capability(device)
    if requested == "auto":
        return "bf16" if capability >= BF16_CAPABILITY else "fp16" if capability >= FP16_CAPABILITY else "fp32"
    needed = {"bf16": BF16_CAPABILITY, "bf16-true": BF16_CAPABILITY, "fp16": FP16_CAPABILITY}.get(requested, (0, 0))
    if capability < needed:
        name = torch.cuda.get_device_name(device)
        raise Refusal(
            f"train.precision: {requested} needs compute capability {dot(needed)}, but {name} has {dot(capability)}: write `train.precision: auto`"
        )
    return requested


def refuse_lost_updates(precision: ChosenPrecision, device: torch.device) -> None:
    """Raise Refusal if the weights are bf16, the device is a CPU, and torch is older than FIRST_TORCH_WITH_BF16_SGD.

    In these versions, fused SGD leaves most bf16 weights unchanged: https://github.com/pytorch/pytorch/issues/191763.
    """
    if precision == "bf16-true" and device.type == "cpu" and torch.__version__ < FIRST_TORCH_WITH_BF16_SGD:
        raise Refusal(
            f"train.precision: bf16-true needs torch {FIRST_TORCH_WITH_BF16_SGD} or newer on a CPU, this is {torch.__version__}: "
            "write `train.precision: fp32`, or install the versions of requirements.lock"
        )


def warn_of_wrong_gradients(precision: ChosenPrecision, device: torch.device, *, channels_last: bool) -> None:
    """Print a warning if oneDNN, which computes convolutions on a CPU, may read uninitialised memory. Seen with torch 2.11 and 2.15."""
    if precision in ("bf16", "bf16-true") and device.type == "cpu" and channels_last:
        print(
            f"warning: train.precision: {precision} gradients of depthwise convolutions with stride 2 on images of 1x1 pixels are wrong on a CPU: "
            "if the model has such layers, write `train.channels_last: false`",
            flush=True,
        )


def autocast(precision: ChosenPrecision, device: torch.device) -> AbstractContextManager[None]:
    """Return the autocast context for a forward pass. With `fp32` and `bf16-true`, the context does nothing."""
    if precision not in DTYPES:
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


def to_bf16(network: nn.Module) -> None:
    """Convert the floating-point weights and buffers of `network` to bf16 in place.

    BatchNorm layers are not converted, because their statistics need higher precision.
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = as_bf16(parameter.data)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, as_bf16(buffer))


def as_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def scaler(precision: ChosenPrecision, device: torch.device) -> torch.amp.GradScaler:
    """Return a gradient scaler, enabled only for fp16. Without scaling, small fp16 gradients would underflow."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
