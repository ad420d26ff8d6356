"""A small network that trains on CIFAR-10 in seconds: a whitening layer, then three blocks of convolutions initialised to the identity.

It is the network of Keller Jordan's airbench94_muon.py (https://github.com/KellerJordan/cifar10-airbench; https://arxiv.org/abs/2404.00498)
with one difference: the bias of the whitening layer is trained to the end, like every other bias.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from pipeline.core.section import Count
from pipeline.core.spec import Spec
from pipeline.inference.params import ModelSettings
from pipeline.inputs.image.description import ImageInputs

if TYPE_CHECKING:
    from pipeline.inference.params import Examples

PATCH = 2
POOL = 2
CHUNK_IMAGES = 50
"""Number of images per chunk; the float64 patches of one chunk fit in a CPU cache."""
BlockWidth = Annotated[int, Field(ge=8, le=65_536)]


class Settings(ModelSettings):
    name: Literal["airbench"]
    block1_width: BlockWidth
    """Channels of the first block of convolutions; the original has 64."""
    block2_width: BlockWidth
    """Channels of the second block; the original has 256."""
    block3_width: BlockWidth
    """Channels of the third block; the original has 256."""
    whiten_images: Count
    """Number of train images from which the whitening layer is computed, evenly spaced over the split; the original uses 5,000."""
    whiten_eps: PositiveFloat
    """Added to the variances by which the whitening layer divides, so that it does not amplify noise; the original has 5e-4."""

    RECOMMENDED: ClassVar = {"block1_width": 64, "block2_width": 256, "block3_width": 256, "whiten_images": 5000, "whiten_eps": 5e-4}

    def build(self, spec: Spec) -> nn.Module:
        images = ImageInputs.of(spec)
        images.refuse_smaller(PATCH, model=self.name, instead="mlp")
        filters = 2 * images.channels * PATCH**2
        whitening = nn.Conv2d(images.channels, filters, PATCH)
        whitening.weight.requires_grad_(False)
        blocks, extent = [], (images.height - PATCH + 1, images.width - PATCH + 1)
        for inputs, outputs in pairwise((filters, self.block1_width, self.block2_width, self.block3_width)):
            pools = min(extent) >= POOL
            blocks.append(block(inputs, outputs, pools=pools))
            extent = (extent[0] // POOL, extent[1] // POOL) if pools else extent
        # max pooling, because `amax` has a faulty gradient: see GlobalMax in resnet.py
        last = nn.MaxPool2d(extent), nn.Flatten(), Head(self.block3_width, spec.num_outputs)
        return nn.Sequential(whitening, nn.GELU(), *blocks, *last)

    def initialize_weights(self, network: nn.Module, examples: "Examples") -> None:
        """Compute the filters of the whitening layer from train images. `examples(count)` returns preprocessed images.

        The filters are the eigenvectors of the covariance of all 2x2 patches. Each eigenvector is used with both signs, and scaled so
        that the variance of its output is about 1.
        """
        whitening = network.get_submodule("0")
        assert isinstance(whitening, nn.Conv2d)
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance(examples(self.whiten_images)))
        filters = (eigenvectors / (eigenvalues + self.whiten_eps).sqrt()).T.reshape(-1, *whitening.weight.shape[1:])
        with torch.no_grad():
            whitening.weight.copy_(torch.cat((filters, -filters)))


def covariance(images: Tensor) -> Tensor:
    """Return the covariance of the 2x2 patches of `images` (n, channels, height, width). The mean is not subtracted.

    The result (channels * 4, channels * 4) is float64.
    """
    total, count = torch.zeros((), dtype=torch.float64), 0
    rows, columns = (extent - PATCH + 1 for extent in images.shape[2:])
    for chunk in torch.split(images, CHUNK_IMAGES):
        planes = chunk.transpose(0, 1).double()
        corners = [planes[..., top : top + rows, left : left + columns] for top in range(PATCH) for left in range(PATCH)]
        patches = torch.stack(corners, dim=1).flatten(2).flatten(0, 1)
        total, count = total + patches @ patches.T, count + patches.shape[1]
    return total / count


def block(inputs: int, outputs: int, *, pools: bool) -> nn.Module:
    """Return two convolutions, each followed by BatchNorm and GELU. `inputs` and `outputs` are numbers of channels.

    If `pools` is True, max pooling follows the first convolution.
    """
    first = convolution(inputs, outputs), nn.MaxPool2d(POOL) if pools else nn.Identity(), Norm(outputs), nn.GELU()
    return nn.Sequential(*first, convolution(outputs, outputs), Norm(outputs), nn.GELU())


def convolution(inputs: int, outputs: int) -> nn.Module:
    """Return a 3x3 convolution without bias, because the BatchNorm after it has a bias.

    `inputs` and `outputs` are numbers of channels. The initial weights copy the input to the first `inputs` output channels.
    """
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:inputs])
    return layer


class Norm(nn.BatchNorm2d):
    """BatchNorm with a bias but no trainable scale, a high momentum and a tiny epsilon, all as in the original airbench."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad_(False)


class Head(nn.Linear):
    """A linear layer without bias. Its initial weights have variance 1, and its outputs are divided by `in_features`.

    The division changes the effective learning rate.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.weight.data /= self.weight.data.std()

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) / self.in_features
