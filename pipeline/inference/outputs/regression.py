"""The last layer of a trained regression: it turns standardised numbers into those of the targets."""

import torch
from torch import Tensor, nn

from pipeline.core.tasks.regression import NumberTargets


class Postprocessing(nn.Module):
    """Returns the numbers (n, columns) in the units of the targets, in float64, for `outputs` (n, columns), which are standardised numbers.

    Float32 has steps of 128 at 1.7e9, the seconds since 1970, and ends at 3.4e38.
    """

    unit = "standard deviations of the targets"
    mean: Tensor
    std: Tensor

    def __init__(self, targets: NumberTargets) -> None:
        super().__init__()
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(targets, name), dtype=torch.float64), persistent=False)

    @property
    def scale(self) -> Tensor:
        """The `unit` in which differences of outputs are measured."""
        return self.std

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.std + self.mean
