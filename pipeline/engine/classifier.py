"""The classifier from raw bytes to logits. Normalisation is part of the model, so training, scoring and serving cannot differ in it."""

from typing import cast

import torch
from torch import Tensor, nn

from pipeline.engine import precision
from pipeline.spec import Spec

BYTE = 255.0


class Classifier(nn.Module):
    """Maps `images` (n, height, width, channels) uint8 to logits (n, classes). Raises ValueError for images on another device.

    With `bf16-true` the network's weights and its normalised inputs are bf16, and the logits are converted to float32.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, spec: Spec, *, channels_last: bool, half: bool = False) -> None:
        super().__init__()
        if half:
            precision.halve(network)
        self.half_precision = half
        self.network = network.to(memory_format=torch.channels_last) if channels_last else network
        self.channels_last = channels_last
        mean, std = torch.tensor(spec.mean, dtype=torch.float64), torch.tensor(spec.std, dtype=torch.float64)
        shape = (1, spec.channels, 1, 1)
        self.register_buffer("scale", (1 / (BYTE * std)).float().view(shape), persistent=False)
        self.register_buffer("shift", (-mean / std).float().view(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.device != self.scale.device:
            raise ValueError(f"the batch is on {images.device}, the model on {self.scale.device}: move the batch with `.to(...)`")
        inputs = self.normalised(images)
        if self.half_precision:
            return cast("Tensor", self.network(precision.as_half(inputs)).float())
        return cast("Tensor", self.network(inputs))

    def normalised(self, images: Tensor) -> Tensor:
        """Return the network's input (n, channels, height, width): mean 0 and standard deviation 1 per channel over the train split."""
        # in place: on a CPU, writing to cold memory takes longer than the arithmetic
        return self.arranged(images).mul_(self.scale).add_(self.shift)

    def arranged(self, images: Tensor) -> Tensor:
        """Return a floating-point copy (n, channels, height, width) in the network's memory format."""
        # name the format in one call: a permuted single channel matches both formats, and convolutions would treat it as channels_last
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.permute(0, 3, 1, 2).to(self.scale.dtype, memory_format=order, copy=True)
