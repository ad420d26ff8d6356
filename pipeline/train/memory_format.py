"""The memory format of a training's network and images: channels_last or contiguous."""

import torch
from torch import nn

from pipeline.inference.precision import ChosenPrecision
from pipeline.train.params import LoopSettings


def choose(settings: LoopSettings, network: nn.Module, precision: ChosenPrecision, device: torch.device) -> bool:
    """Return True for channels_last: the value of `train.channels_last`, or what `is_faster` returns if the value is `auto`.

    With `train.sharding: full`, `auto` is False, because FSDP2 needs weights in contiguous order.
    """
    if settings.channels_last == "auto":
        return settings.sharding == "none" and is_faster(network, precision, device)
    return settings.channels_last


def is_faster(network: nn.Module, precision: ChosenPrecision, device: torch.device) -> bool:
    """Return True if channels_last is expected to make the steps of `network` faster.

    On a CPU, oneDNN's convolutions take about half the time in channels_last, but in 16 bits oneDNN computes wrong gradients of some
    depthwise ones (see `precision.warn_of_wrong_gradients`). On a GPU, tensor cores read channels_last, so convolutions in 16 bits profit.
    cuDNN divides a depthwise one into many kernels then; a captured step starts them at once, and takes 0.7 of the time for MobileNetV3. A
    network with a single convolution is no convolutional one: in a vision transformer, this layer only cuts the image into patches.
    """
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    if len(convolutions) < 2:
        return False
    if device.type == "cuda":
        return precision != "fp32"
    return precision == "fp32" or not any(layer.groups == layer.in_channels > 1 for layer in convolutions)
