"""The section `augment`: what happens to a training image before the network sees it."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.params.section import Section, Share
from pipeline.refusal import Refusal

if TYPE_CHECKING:
    from pipeline.spec import Spec


Strength = Annotated[float, Field(ge=0, le=1)]
Alpha = Annotated[float, Field(ge=0, le=100)]
COLOURS = 3


class AugmentSettings(Section):
    crop: Annotated[int, Field(ge=0, le=1024)]
    """Pixels of zero padding on every side, out of which a window of the image's size is cut at random; 0 for none."""
    resized_crop: Share
    """Least share of the area that a window of random size, shape (3:4 to 4:3) and place has, which is resized to the image's size; 0 for none."""
    flip: Literal["none", "random", "alternating"]
    """Mirror left and right: `random`, every second sample on average; `alternating`, each sample in every second epoch."""
    brightness: Strength
    """Multiply the colours by a random factor, of 1 give or take this at most; 0 for none."""
    contrast: Strength
    """Multiply the distance of the colours from the image's mean grey by such a factor; 0 for none."""
    saturation: Strength
    """Multiply the distance of the colours from their own grey by such a factor; 0 for none, and for images without three colours."""
    cutout: Annotated[int, Field(ge=0, le=65_535)]
    """Side in pixels of a square set to the mean colour at a random place; 0 for none."""

    mixup: Alpha
    """Lay the sample at the mirrored place of the batch over this one, by a share of Beta(alpha, alpha), in image and target; 0 for none."""
    cutmix: Alpha
    """Take a rectangle out of that sample instead, whose share of the area is so drawn; with `mixup`, each sample has one of the two. 0 for none."""

    @field_validator("resized_crop")
    @classmethod
    def is_the_only_crop(cls, resized_crop: float, info: ValidationInfo) -> float:
        if resized_crop and info.data.get("crop"):
            raise ValueError("does not go with augment.crop: write `crop: 0`, or `resized_crop: 0.0`")
        return resized_crop

    def refuse_misfit(self, spec: "Spec") -> None:
        """Raises Refusal for colours that the images lack, and where a window may miss the image; its border would then be most of what is kept
        in memory, too.
        """
        side = min(spec.height, spec.width)
        if self.crop >= side:
            raise Refusal(
                f"augment.crop: {self.crop} pixels around images of {spec.height}x{spec.width}, whose windows may then miss the image: "
                f"write at most {side - 1}"
            )
        if self.saturation and spec.channels != COLOURS:
            raise Refusal(f"augment.saturation: the images have {spec.channels} channels, and not red, green and blue: write 0.0")
