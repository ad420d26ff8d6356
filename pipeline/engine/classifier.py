"""From raw bytes to logits: the normalisation belongs to the model, so training, scoring and serving cannot differ in it."""

from typing import cast

import torch
from torch import Tensor, nn

from pipeline.engine import precision
from pipeline.spec import Spec

BYTE = 255.0


class Classifier(nn.Module):
    """`images` (n, height, width, channels) uint8 to logits (n, classes), float32. Raises ValueError for images on another device.

    With `half` the network's weights become bf16, and so do its inputs once they are normalised.
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
        """As the network reads them: (n, channels, height, width), with a mean of 0 and a deviation of 1 a channel over the train split."""
        # in place: memory that nothing has touched lately takes a CPU longer than the arithmetic
        return self.arranged(images).mul_(self.scale).add_(self.shift)

    def arranged(self, images: Tensor) -> Tensor:
        """A copy as numbers: (n, channels, height, width) in the memory order that the network computes in."""
        # by name, and in one go: a permuted single channel fits both orders, and convolutions would take it for channels_last
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.permute(0, 3, 1, 2).to(self.scale.dtype, memory_format=order, copy=True)
