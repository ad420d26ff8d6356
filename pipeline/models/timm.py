"""All image architectures of the library timm, with random or pretrained weights."""

from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator
from torch import Tensor, nn

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.section import Share, suggestion
from pipeline.core.spec import Inputs, Spec
from pipeline.inference import networks
from pipeline.inference.params import ModelSettings, library
from pipeline.inputs.image.description import ImageInputs

VERSION = "1.0.31"
"""The version in locks/hub.lock. It stands here because it decides results, so that DVC and a training's identity know it."""


def timm() -> Any:
    module = library("timm", VERSION)
    module.layers.set_fused_attn(True)  # else the variable TIMM_FUSED_ATTN would decide bits
    return module


class Settings(ModelSettings):
    name: Literal["timm"]
    architecture: str
    """The name of an architecture of timm, such as `vit_tiny_patch16_224`, or that of pretrained weights, `vit_tiny_patch16_224.augreg_in21k`."""
    normalization: Literal["data", "pretrained"]
    """The mean and standard deviation by which images are normalized: those of the train split (`data`), or those with which the weights that
    `architecture` names were trained (`pretrained`)."""
    dropout: Share
    """Dropout probability of the features before the last layer."""
    drop_path: Annotated[float, Field(ge=0, lt=1)]
    """The largest probability with which a block is skipped in training (stochastic depth). Must be 0 if the architecture does not have it."""

    RECOMMENDED: ClassVar = {"architecture": "resnet18", "normalization": "data", "dropout": 0.0, "drop_path": 0.0}

    @field_validator("architecture")
    @classmethod
    def exists(cls, architecture: str) -> str:
        base = architecture.partition(".")[0]
        if not timm().is_model(base):
            near = ", ".join(f"`{name}`" for name in get_close_matches(base, timm().list_models(), n=3, cutoff=0))
            raise ValueError(f"timm has no architecture {architecture!r}: the nearest names are {near}")
        tags = [name for name in timm().list_pretrained(f"{base}*") if name.partition(".")[0] == base]
        if architecture != base and architecture not in tags:
            remedy = suggestion(architecture, tuple(tags)) if tags else f"it publishes none: write `{base}`"
            raise ValueError(f"timm has no pretrained weights {architecture!r}: {remedy}")
        return architecture

    @property
    def title(self) -> str:
        return self.architecture

    def build(self, spec: Spec) -> nn.Module:
        images = ImageInputs.of(spec)
        try:
            network = self.created(images, num_classes=spec.num_outputs)
            networks.try_out(network, images.channels, images.height, images.width)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise Refusal(
                f"model.architecture: {self.architecture} does not accept images of {images.height}x{images.width} "
                f"({untrusted.reason(error)}): change source.image_size, or choose another architecture"
            ) from None
        except TypeError as error:
            raise Refusal(f"model.drop_path: {self.architecture} has none ({untrusted.reason(error)}): set it to 0") from None
        if hasattr(network, "group_matcher"):
            cast("Any", network).parameter_layers = parameter_layers(network)
        return network

    def created(self, images: ImageInputs, **options: Any) -> nn.Module:
        """Return the network for `images`. `options` are passed to timm's `create_model`."""
        if timm().get_pretrained_cfg_value(self.architecture, "fixed_input_size"):
            options["img_size"] = (images.height, images.width)
        if self.drop_path:
            options["drop_path_rate"] = self.drop_path
        network: nn.Module = timm().create_model(self.architecture, in_chans=images.channels, drop_rate=self.dropout, **options)
        return network

    def normalized(self, inputs: Inputs) -> Inputs:
        if self.normalization == "data" or not isinstance(inputs, ImageInputs):
            return inputs
        mean, std = (timm().get_pretrained_cfg_value(self.architecture, name) for name in ("mean", "std"))
        if len(mean) != inputs.channels:
            raise Refusal(
                f"model.normalization: the weights of {self.architecture} were trained on images of {len(mean)} channels, and these have "
                f"{inputs.channels}: write `normalization: data`"
            )
        return inputs.model_copy(update={"mean": tuple(mean), "std": tuple(std)})

    def adapted(self, tensors: dict[str, Tensor], spec: Spec) -> dict[str, Tensor]:
        """Return published tensors for images of the size and the channels of `spec`, as timm adapts them, with the classes of the file."""
        head = timm().get_pretrained_cfg_value(self.architecture, "classifier")
        heads = [head] if isinstance(head, str) else list(head or ())
        rows = [len(tensors[f"{name}.weight"]) for name in heads if f"{name}.weight" in tensors]
        num_classes = rows[0] if rows else 0
        overlay = {"state_dict": tensors, "num_classes": num_classes, "label_offset": 0}
        network = self.created(ImageInputs.of(spec), pretrained=True, pretrained_cfg_overlay=overlay, num_classes=num_classes)
        return cast("dict[str, Tensor]", network.state_dict())


def parameter_layers(network: Any) -> dict[str, int]:
    """Return the layer of each parameter by its name, as timm counts layers: 0 for the stem, the last number for the head."""
    from timm.models._manipulate import group_parameters  # timm has no public name for it

    return dict(group_parameters(network, network.group_matcher(coarse=False), reverse=True))
