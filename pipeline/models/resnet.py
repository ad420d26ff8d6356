"""Residual networks for small images: the fast 9-layer network (Page, 2018) and networks of 10 to 18 layers (He et al., 2016)."""

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings
from pipeline.inputs.image.description import ImageInputs

SMALLEST = 8
NINE = 9
FEWEST_CHANNELS = 8
"""Smallest permitted width. With fewer channels, oneDNN's gradient of a 1x1 convolution with stride 2 in channels_last is wrong and differs
from run to run (torch 2.15)."""
BLOCKS = {10: (1, 1, 1, 1), 12: (2, 1, 1, 1), 14: (2, 2, 1, 1), 16: (2, 2, 2, 1), 18: (2, 2, 2, 2)}


class Settings(ModelSettings):
    name: Literal["resnet"]
    depth: Literal[9, 10, 12, 14, 16, 18]
    """Number of layers with weights, including the first and the last."""
    width: Annotated[int, Field(ge=FEWEST_CHANNELS, le=65_536)]
    """Channels of the first stage; each further stage has twice as many. The originals have 64."""

    RECOMMENDED: ClassVar = {"depth": 9, "width": 64}

    def build(self, spec: Spec) -> nn.Module:
        images = ImageInputs.of(spec)
        images.refuse_smaller(SMALLEST, model=self.name, instead="convnet")
        if self.depth == NINE:
            return nine_layers(images.channels, spec.num_outputs, width=self.width)
        return stages_of_blocks(images.channels, spec.num_outputs, width=self.width, counts=BLOCKS[self.depth])


def nine_layers(channels: int, num_outputs: int, *, width: int) -> nn.Module:
    """Build the 9-layer network of "How to train your ResNet" (Page, 2018). `width` is the number of channels of the first stage.

    Three stages halve the image by pooling. Two of them have a residual block.
    """
    return nn.Sequential(
        unit(channels, width),
        nn.Sequential(unit(width, 2 * width), nn.MaxPool2d(2), ResidualBlock(2 * width, 2 * width, stride=1)),
        nn.Sequential(unit(2 * width, 4 * width), nn.MaxPool2d(2)),
        nn.Sequential(unit(4 * width, 8 * width), nn.MaxPool2d(2), ResidualBlock(8 * width, 8 * width, stride=1)),
        GlobalMax(),
        nn.Linear(8 * width, num_outputs),
    )


def stages_of_blocks(channels: int, num_outputs: int, *, width: int, counts: tuple[int, ...]) -> nn.Module:
    """Build a network of "Deep residual learning" (He et al., 2016): four stages of blocks, with a 3x3 stem instead of 7x7.

    `width` is the number of channels of the first stage. `counts` are the numbers of blocks per stage.
    """
    layers = [unit(channels, width)]
    channels = width
    for stage, count in enumerate(counts):
        for number in range(count):
            outputs = width * 2**stage
            layers.append(ResidualBlock(channels, outputs, stride=2 if stage and number == 0 else 1))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_outputs))


class ResidualBlock(nn.Module):
    """A residual block: two 3x3 convolutions and a shortcut. The shortcut is a 1x1 convolution if the shape changes, else the identity."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(inputs, outputs, stride=stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else projection(inputs, outputs, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        return relu(cast("Tensor", self.residual(inputs) + self.shortcut(inputs)))


class GlobalMax(nn.Module):
    """Global max pooling of (n, channels, height, width) to (n, channels). Unlike AdaptiveMaxPool2d, its backward pass is deterministic.

    `amax` is not used, because its gradient may divide by zero if it is compiled in bf16. It divides by the number of values that equal the
    maximum. The compiled code may compare the rounded maximum with unrounded values, and then none is equal.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        return max_pool2d(inputs, inputs.shape[2:]).flatten(1)


def unit(inputs: int, outputs: int) -> nn.Module:
    """Return a 3x3 convolution without bias, followed by BatchNorm and ReLU."""
    return nn.Sequential(convolution(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU())


def convolution(inputs: int, outputs: int, *, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return a 1x1 convolution with stride `stride` and without bias, followed by BatchNorm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
