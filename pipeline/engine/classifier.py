"""From raw bytes to logits: the normalisation belongs to the model, so training, scoring and serving cannot differ in it."""

from typing import cast

import torch
from torch import Tensor, nn

from pipeline.spec import Spec

BYTE = 255.0


class Classifier(nn.Module):
    """`images` (n, height, width, channels) uint8 to logits (n, classes)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, spec: Spec, *, channels_last: bool) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last) if channels_last else network  # type: ignore[call-overload]
        self.channels_last = channels_last
        mean, std = torch.tensor(spec.mean, dtype=torch.float64), torch.tensor(spec.std, dtype=torch.float64)
        shape = (1, spec.channels, 1, 1)
        self.register_buffer("scale", (1 / (BYTE * std)).float().view(shape), persistent=False)
        self.register_buffer("shift", (-mean / std).float().view(shape), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        # NHWC bytes seen as NCHW are channels_last already
        inputs = images.permute(0, 3, 1, 2) * self.scale + self.shift
        if not self.channels_last:
            inputs = inputs.contiguous()
        return cast("Tensor", self.network(inputs))
