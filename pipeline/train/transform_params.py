"""The transforms that parameters name, and the base classes of their settings. A transform is a random change of each image or text of the train split."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.core.registry import Registry, missing_method
from pipeline.core.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.inputs.text.description import TextInputs

Uniform = Callable[..., "Tensor"]
"""A function that returns random numbers from 0 inclusive to 1 exclusive for each of n samples. Each call returns others: `uniform()` one for each
sample, (n,), and `uniform(5)` or `uniform(height, width)` further dimensions after the first, (n, 5) or (n, height, width). They are float32 on the
device, and those of a sample depend only on the seed, the epoch and the sample."""

TRANSFORMS = Registry("pipeline.train.augment.transforms", "transform", needs_torch=True)
Probability = Annotated[float, Field(gt=0, le=1, description="The probability that a sample changes.")]
Degrees = Annotated[float, Field(ge=0, le=180)]


class TransformSettings(Section):
    """The settings of a transform of images: an item of `augment.transforms`. Each transform adds its own settings in its module."""

    name: str
    """The transform: a module of `pipeline/train/augment/transforms/`."""

    inputs: ClassVar[Literal["image", "text"]] = "image"
    channels: ClassVar[tuple[int, ...]] = ()
    """The numbers of channels of the images that the transform can change; () for any."""

    def changed(self, images: "Tensor", uniform: Uniform) -> "Tensor":  # noqa: ARG002  # for the transforms
        """Return the changed images (n, channels, height, width), of the same shape, float32 on the same device; what is outside 0 to 1 is clipped.

        `images` are not normalised: 0 is black and 1 the largest value. An image may not depend on the other images of the batch. All random numbers
        are from `uniform`. There is no host synchronisation, as by `item()` or boolean indexing.
        """
        raise missing_method(type(self), "changed(self, images, uniform)")


class TextTransformSettings(TransformSettings):
    """The settings of a transform of texts."""

    inputs: ClassVar[Literal["image", "text"]] = "text"

    def refuse_misfit(self, text: "TextInputs", key: str) -> None:
        """Raise Refusal if the transform cannot be used for these texts. `key` is the parameter of this transform. This base class does nothing."""

    def changed_tokens(self, tokens: "Tensor", uniform: Uniform, text: "TextInputs") -> "Tensor":  # noqa: ARG002  # for the transforms
        """Return the changed tokens (n, length), int32. Padding, and the tokens that the tokenizer puts around each text, then become what they were.

        `tokens` are token numbers, described by `text`. What `changed` says of images holds for texts.
        """
        raise missing_method(type(self), "changed_tokens(self, tokens, uniform, text)")
