"""Any classification architecture of torchvision by its name, with a stem for small images and, if wanted, pretrained weights."""

from typing import Any, Literal, cast
from urllib.error import URLError

from pydantic import field_validator
from torch import Tensor, nn
from torchvision import models

from pipeline.params.train import ModelSettings
from pipeline.refusal import Refusal
from pipeline.spec import Spec

AUXILIARY_HEADS = ("googlenet", "inception_v3")
RGB = 3


class Settings(ModelSettings):
    name: Literal["torchvision"]
    architecture: str
    """Any of torchvision's classification architectures: mobilenet_v3_small, resnet50, vit_b_16, ..."""
    stem: Literal["original", "small"]
    """`small` lets the first convolution keep the image's size and drops the pooling behind it: for images up to about 64 pixels."""
    weights: str | None
    """Pretrained weights to begin with, such as `IMAGENET1K_V1`; what does not fit the classes or the stem begins anew. null for none."""

    @field_validator("architecture")
    @classmethod
    def exists(cls, architecture: str) -> str:
        known = models.list_models(module=models)
        if architecture not in known:
            raise ValueError(f"torchvision has no classification architecture {architecture!r}: known are {', '.join(known)}")
        return architecture

    def build(self, spec: Spec) -> nn.Module:
        extra: dict[str, Any] = {"aux_logits": False, "init_weights": True} if self.architecture in AUXILIARY_HEADS else {}
        if self.architecture.startswith("vit_"):
            extra["image_size"] = spec.height
        network = models.get_model(self.architecture, num_classes=spec.num_classes, **extra)
        change_stem(network, channels=spec.channels, small=self.stem == "small")
        return cast("nn.Module", network)

    def prime(self, network: nn.Module) -> None:
        if self.weights is None:
            return
        try:
            known = models.get_model_weights(self.architecture)
            if self.weights not in known.__members__:
                raise Refusal(
                    f"model.weights: {self.architecture} has no weights {self.weights!r}: known are {', '.join(known.__members__)}"
                )
            pretrained = known[self.weights].get_state_dict(progress=True, check_hash=True)
        except (URLError, OSError) as error:
            raise Refusal(
                f"model.weights: {self.weights} cannot be downloaded ({error}): put the file into $TORCH_HOME/hub/checkpoints"
            ) from None
        load_what_fits(network, pretrained)


def change_stem(network: nn.Module, *, channels: int, small: bool) -> None:
    """Fit the first convolution to the image's channels, and for small images let it keep their size."""
    if channels == RGB and not small:
        return
    name, first = next((name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d))
    stride = (1, 1) if small else first.stride
    fresh = nn.Conv2d(
        channels,
        first.out_channels,
        cast("tuple[int, int]", first.kernel_size),
        stride=cast("tuple[int, int]", stride),
        padding=cast("tuple[int, int]", first.padding),
        bias=first.bias is not None,
    )
    network.set_submodule(name, fresh)
    if small and hasattr(network, "maxpool"):
        network.maxpool = nn.Identity()


def load_what_fits(network: nn.Module, pretrained: dict[str, Tensor]) -> None:
    own = network.state_dict()
    fitting = {name: tensor for name, tensor in pretrained.items() if name in own and tensor.shape == own[name].shape}
    network.load_state_dict(fitting, strict=False)
    print(f"train: {len(fitting)} of {len(own)} tensors begin pretrained")
