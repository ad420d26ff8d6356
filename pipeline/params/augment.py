"""The section `augment`: what happens to a training image before the network sees it."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.params.section import Section, Share
from pipeline.refusal import Refusal

if TYPE_CHECKING:
    from pipeline.spec import Spec


Strength = Annotated[float, Field(ge=0, le=1)]
"""Not more: a factor below 0 would make a negative of the image."""
Alpha = Annotated[float, Field(ge=0, le=100)]
COLOURS = 3


class AugmentSettings(Section):
    crop: Annotated[int, Field(ge=0, le=1024)]
    """Pixels of zero padding on every side, out of which a window of the image's size is cut at random; 0 for none."""
    resized_crop: Share
    """Resize a window of random size, shape (3:4 to 4:3) and place, with this share of the image's area at least, to the image's size; 0 for none."""
    flip: Literal["none", "random", "alternating"]
    """Mirror left and right: `random`, every second sample on average; `alternating`, each sample in every second epoch."""
    brightness: Strength
    """Multiply the colours by a random factor, of 1 give or take this at most; 0 for none. For one or three channels."""
    contrast: Strength
    """Multiply the distance of the colours from the image's mean grey by such a factor; 0 for none. For one or three channels."""
    saturation: Strength
    """Multiply the distance of the colours from their own grey by such a factor; 0 for none. For three channels."""
    cutout: Annotated[int, Field(ge=0, le=65_535)]
    """Side in pixels of a square set to the mean colour at a random place; 0 for none."""
    mixup: Alpha
    """Alpha of mixup: the sample at the mirrored place of the batch is blended with this one, with a share of Beta(alpha, alpha); 0 for none."""
    cutmix: Alpha
    """Alpha of CutMix: a rectangle is taken from the sample at the mirrored place of the batch, with a share of the area of Beta(alpha, alpha); 0 for
    none. With `mixup`, each sample has one of the two."""

    @field_validator("resized_crop")
    @classmethod
    def is_the_only_crop(cls, resized_crop: float, info: ValidationInfo) -> float:
        if resized_crop and info.data.get("crop"):
            raise ValueError("does not go with augment.crop: write `crop: 0`, or `resized_crop: 0.0`")
        return resized_crop

    def refuse_misfit(self, spec: "Spec") -> None:
        """Raises Refusal for windows that may miss such images, and for light where the channels are neither grey nor red, green and blue."""
        side = min(spec.height, spec.width)
        if self.crop >= side:  # the border would be most of what is kept in memory, too
            raise Refusal(
                f"augment.crop: {self.crop} pixels around images of {spec.height}x{spec.width}, whose windows may then miss the image: "
                f"write at most {side - 1}"
            )
        for name, strength in {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}.items():
            fitting = (COLOURS,) if name == "saturation" else (1, COLOURS)
            if strength and spec.channels not in fitting:
                raise Refusal(
                    f"augment.{name}: is for images of {' or '.join(map(str, fitting))} channels, and these have {spec.channels}: write 0.0"
                )
