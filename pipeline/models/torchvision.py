"""All classification architectures of torchvision, optionally with a stem for small images and with pretrained weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from pydantic import ValidationInfo, field_validator
from torch import Tensor, nn
from torchvision import models

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.section import suggestion
from pipeline.core.spec import Spec
from pipeline.inference import networks
from pipeline.inference.params import ModelSettings
from pipeline.inputs.image.description import ImageInputs

if TYPE_CHECKING:
    from pipeline.inference.params import Examples

AUXILIARY_HEADS = ("googlenet", "inception_v3")
RGB = 3
BLOCK_NAMES = {
    "ConvNeXt": r"features\.(1\.\d+|[246]|[357]\.[1-9]\d*)\.",
    "DenseNet": r"features\.denseblock\d+\.denselayer\d+\.",
    "EfficientNet": r"features\.\d+\.\d+\.block\.",
    "GoogLeNet": r"inception\w+\.",
    "Inception3": r"(Conv2d_3b|Mixed)\w+\.",
    "MNASNet": r"layers\.(3|\d+\.\d+\.layers)\.",
    "MaxVit": r"blocks\.\d+\.",
    "MobileNetV2": r"features\.\d+\.conv\.",
    "MobileNetV3": r"features\.[1-9]\d*\.",
    "RegNet": r"trunk_output\.block\d+\.block\d+-\d+\.",
    "ResNet": r"layer\d+\.\d+\.",
    "ShuffleNetV2": r"stage\d+\.\d+\.",
    "SqueezeNet": r"features\.\d+\.squeeze\.",
    "SwinTransformer": r"features\.(1\.\d+|[246]|[357]\.[1-9]\d*)\.",
    "VisionTransformer": r"encoder\.layers\.encoder_layer_\d+\.",
}
"""By the class of a network, the beginning of the names of a block's parameters, for `optimizer.layer_decay`. Blocks are those of timm
(`group_matcher`): a downsampling of ConvNeXt and Swin belongs to the block after it, one of DenseNet to the block before it. timm lacks
GoogLeNet, ShuffleNet and SqueezeNet: their blocks are the modules that their papers count. AlexNet and VGG have none."""


class Settings(ModelSettings):
    name: Literal["torchvision"]
    architecture: str
    """The name of a torchvision classification architecture: mobilenet_v3_small, resnet50, vit_b_16, ..."""
    stem: Literal["original", "small"]
    """`small` is for images up to about 64 pixels: the first convolution has stride 1, and the pooling after it is removed."""
    pretrained: str | None
    """Weights published by torchvision to start from, such as `IMAGENET1K_V1`, or null for none; they are downloaded. Layers whose shapes do
    not match start from random weights."""

    RECOMMENDED: ClassVar = {"architecture": "mobilenet_v3_small", "stem": "small", "pretrained": None}

    @field_validator("architecture")
    @classmethod
    def exists(cls, architecture: str) -> str:
        known = models.list_models(module=models)
        if architecture not in known:
            raise ValueError(f"torchvision has no classification architecture {architecture!r}: {suggestion(architecture, tuple(known))}")
        return architecture

    @field_validator("pretrained")
    @classmethod
    def belong_to_the_architecture(cls, pretrained: str | None, info: ValidationInfo) -> str | None:
        if pretrained is not None and "architecture" in info.data:
            known = models.get_model_weights(info.data["architecture"]).__members__
            if pretrained not in known:
                raise ValueError(
                    f"{info.data['architecture']} has no weights {pretrained!r}: choose one of {', '.join(known)}, or null for random weights"
                )
            if info.data.get("weights") is not None:
                raise ValueError("cannot be combined with model.weights: write null for one of the two")
        return pretrained

    @property
    def title(self) -> str:
        return self.architecture

    def build(self, spec: Spec) -> nn.Module:
        images = ImageInputs.of(spec)
        # auxiliary heads would change the form of the output in training; torchvision warns if `init_weights` is not set
        extra: dict[str, Any] = {"aux_logits": False, "init_weights": True} if self.architecture in AUXILIARY_HEADS else {}
        if self.architecture.startswith("vit_"):
            extra["image_size"] = images.height
        try:
            network: Any = models.get_model(self.architecture, num_classes=spec.num_outputs, **extra)
            network.block_names = BLOCK_NAMES.get(type(network).__name__)
            change_stem(network, channels=images.channels, small=self.stem == "small")
            networks.try_out(network, images.channels, images.height, images.width)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise Refusal(
                f"model.architecture: {self.architecture} with `stem: {self.stem}` does not accept images of {images.height}x{images.width} "
                f"({untrusted.reason(error)}): raise source.image_size, or choose another stem or architecture"
            ) from None
        return cast("nn.Module", network)

    def initialize_weights(self, network: nn.Module, examples: "Examples") -> None:  # noqa: ARG002  # pretrained weights come from other data
        if self.pretrained is None:
            return
        own, pretrained = network.state_dict(), published(self.architecture, self.pretrained)
        fitting = {name: tensor for name, tensor in pretrained.items() if name in own and tensor.shape == own[name].shape}
        networks.load(network, fitting, strict=False)
        print(f"train: {len(fitting)} of {len(own)} tensors start from pretrained weights")

    @property
    def downloaded(self) -> bool:
        return self.pretrained is not None

    def fetch(self) -> None:
        if self.pretrained is not None:
            published(self.architecture, self.pretrained)


def published(architecture: str, weights: str) -> dict[str, Tensor]:
    """Return the published tensors by name. Downloads them if they are not in torch's cache.

    Raises Refusal if the tensors cannot be downloaded or read.
    """
    entry = models.get_model_weights(architecture)[weights]
    try:
        found: dict[str, Tensor] = entry.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:  # the network, the archive and the restricted unpickler raise exceptions of many types
        path = Path(torch.hub.get_dir(), "checkpoints", entry.url.rpartition("/")[2])  # in torch's cache
        if path.exists():  # do not show torch's message: it advises to unpickle the file, which may run code in it
            raise Refusal(
                f"model.pretrained: {path}: is not a complete weights file: remove this file, and it is downloaded again"
            ) from None
        remedy = f"put {path.name} into {path.parent}, or write `model.pretrained: null`"
        raise Unavailable(f"model.pretrained: {weights} cannot be downloaded ({untrusted.reason(error)}): {remedy}") from None
    return found


def change_stem(network: nn.Module, *, channels: int, small: bool) -> None:
    """Adapt the first convolution of `network` to images of `channels` channels and, if `small` is True, to small images.

    The convolution is replaced by an untrained one with `channels` input channels. If `small` is True, the new convolution has stride 1,
    and a max pooling that directly follows is removed. If `small` is False and `channels` is 3, the network is not changed.
    """
    if channels == RGB and not small:
        return
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d | nn.MaxPool2d)]
    name, first = cast("tuple[str, Any]", layers[0])
    fresh = nn.Conv2d(
        channels,
        first.out_channels,
        first.kernel_size,
        stride=1 if small else first.stride,
        padding=tuple(side // 2 for side in first.kernel_size) if small else first.padding,
        bias=first.bias is not None,
    )
    network.set_submodule(name, fresh)
    if small and isinstance(layers[1:] and layers[1][1], nn.MaxPool2d):
        network.set_submodule(layers[1][0], nn.Identity())
