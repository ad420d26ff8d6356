"""Turns raw images into the input of a network.

The preprocessing is part of the model, so it is the same in training, evaluation and serving.
"""

import torch
from torch import Tensor, nn

from pipeline.inputs.image.description import ImageInputs

BYTE = 255.0


class Preprocessing(nn.Module):
    """Normalises images: maps uint8 (n, height, width, channels) to floating-point numbers (n, channels, height, width).

    Each channel is shifted and scaled by its mean and standard deviation in the train split. If `channels_last` is True, the result has
    this memory format. Raises ValueError if the images and this module are on different devices.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, inputs: ImageInputs, *, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last
        mean, std = torch.tensor(inputs.mean, dtype=torch.float64), torch.tensor(inputs.std, dtype=torch.float64)
        shape = (1, inputs.channels, 1, 1)
        self.register_buffer("scale", (1 / (BYTE * std)).float().view(shape), persistent=False)
        self.register_buffer("shift", (-mean / std).float().view(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.device != self.scale.device:
            raise ValueError(f"the batch is on {images.device}, the model on {self.scale.device}: move the batch with `.to(...)`")
        planes = images.permute(0, 3, 1, 2)
        # one call with memory_format: a permuted tensor of one channel matches both formats, and convolutions would treat it as channels_last
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        # one launch instead of three; this is slower on a CPU, and torch.compile merges the three itself
        if images.is_cuda and not torch.compiler.is_compiling():
            normalized = torch.empty(planes.shape, dtype=self.scale.dtype, device=images.device, memory_format=order)
            return torch.addcmul(self.shift, planes, self.scale, out=normalized)
        # in place: on a CPU, writing to new memory takes longer than the arithmetic
        return planes.to(self.scale.dtype, memory_format=order, copy=True).mul_(self.scale).add_(self.shift)
