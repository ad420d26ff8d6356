"""A plain convolutional network of three stages. Each further stage has half the image size and twice the channels."""

from typing import ClassVar, Literal

from torch import nn

from pipeline.core.section import Share, Width
from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings
from pipeline.inputs.image.description import ImageInputs

SMALLEST = 4


class Settings(ModelSettings):
    name: Literal["convnet"]
    width: Width
    """Channels of the first stage; each further stage has twice as many."""
    dropout: Share
    """Dropout probability of the pooled features."""

    RECOMMENDED: ClassVar = {"width": 16, "dropout": 0.1}

    def build(self, spec: Spec) -> nn.Module:
        images = ImageInputs.of(spec)
        images.refuse_smaller(SMALLEST, model=self.name, instead="mlp")
        first, second, third = self.width, 2 * self.width, 4 * self.width
        return nn.Sequential(
            stage(images.channels, first),
            nn.MaxPool2d(2),
            stage(first, second),
            nn.MaxPool2d(2),
            stage(second, third),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(self.dropout),
            nn.Linear(third, spec.num_outputs),
        )


def stage(inputs: int, outputs: int) -> nn.Module:
    """Return two 3x3 convolutions, each followed by BatchNorm and ReLU. The convolutions have no bias, because BatchNorm adds one."""
    return nn.Sequential(*layer(inputs, outputs), *layer(outputs, outputs))


def layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
