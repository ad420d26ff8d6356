"""The section `augment`: random changes to training images."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.core.refusal import Refusal
from pipeline.core.section import Section, Share

Strength = Annotated[float, Field(ge=0, le=1)]
"""Strength of a colour change. Factors are drawn from [1 - strength, 1 + strength]; a negative one would invert the image."""
Alpha = Annotated[float, Field(ge=0, le=100)]
COLOURS = 3


class AugmentSettings(Section):
    crop_padding: Annotated[int, Field(ge=0, le=1024)]
    """Zero-pad each side by this many pixels, then crop a random window of the image's original size; 0 for none."""
    resized_crop: Share
    """Crop a window of random area, aspect ratio (3:4 to 4:3) and position, and resize it to the image's size. The value is the smallest
    area, as a share of the image's area; 0 for none."""
    flip: Literal["none", "random", "alternating"]
    """Horizontal flip: `random` flips each sample with probability 0.5, `alternating` flips each sample in every second epoch."""
    brightness: Strength
    """Multiply the colours by a random factor from [1 - value, 1 + value]; 0 for none. For one or three channels."""
    contrast: Strength
    """Multiply the difference between the colours and the image's mean grey by a random factor from [1 - value, 1 + value]; 0 for none. For one or three channels."""
    saturation: Strength
    """Multiply the difference between each pixel's colour and its grey by a random factor from [1 - value, 1 + value]; 0 for none. For
    three channels."""
    cutout: Annotated[int, Field(ge=0, le=65_535)]
    """Side in pixels of a square at a random position that is set to the mean colour; 0 for none."""
    mixup: Alpha
    """Alpha of mixup: blend each sample with its partner, the sample at the mirrored position of the batch. The partner's
    share is drawn from Beta(alpha, alpha); 0 for none."""
    cutmix: Alpha
    """Alpha of CutMix: replace a rectangle by the same rectangle of the partner, the sample at the mirrored position of the batch. The
    rectangle's share of the image's area is drawn from Beta(alpha, alpha); 0 for none. With `mixup`, each sample gets one of the two at
    random.
    """

    @field_validator("resized_crop")
    @classmethod
    def refuse_two_crops(cls, resized_crop: float, info: ValidationInfo) -> float:
        if resized_crop and info.data.get("crop_padding"):
            raise ValueError(
                "cannot be combined with augment.crop_padding: write `augment.crop_padding: 0`, or `augment.resized_crop: 0.0`"
            )
        return resized_crop

    def refuse_misfit(self, height: int, width: int, channels: int) -> None:
        """Raise Refusal if a crop could contain only padding, or if a colour change does not apply to images with `channels` channels."""
        side = min(height, width)
        if self.crop_padding >= side:  # the padded images in memory would be mostly border, too
            raise Refusal(
                f"augment.crop_padding: {self.crop_padding} pixels of padding around images of {height}x{width} are too many, because a crop could contain only padding: "
                f"write at most {side - 1}"
            )
        for name, strength in {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}.items():
            fitting = (COLOURS,) if name == "saturation" else (1, COLOURS)
            if strength and channels not in fitting:
                raise Refusal(
                    f"augment.{name}: needs images of {' or '.join(map(str, fitting))} channels, these have {channels}: write 0.0"
                )
