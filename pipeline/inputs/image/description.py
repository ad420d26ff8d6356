"""Describes images of one size, with the mean and standard deviation that normalise them."""

from math import prod
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from pipeline.core import spec
from pipeline.core.refusal import Refusal

Extent = Annotated[int, Field(ge=1, le=65_535)]
Mean = Annotated[float, Field(ge=0, le=1)]
Deviation = Annotated[float, Field(gt=0, le=1)]
"""Standard deviation of a channel whose values are scaled to [0, 1]. It is at most 1/2; a constant channel has 1 instead of 0."""


WhitePoint = Annotated[int, Field(ge=1, le=2**31 - 1)]


class ImageInputs(spec.Inputs):
    """Describes uint8 images (height, width, channels). `mean` and `std` normalise each channel; they refer to pixel values divided by 255.

    `white` is the value that became 255 when files with more than 8 bits per pixel were decoded; None means the largest value of 16 bits.
    """

    dtype: ClassVar[type[np.generic]] = np.uint8
    augmented: ClassVar[Literal["pixels"]] = "pixels"

    kind: Literal["image"] = "image"
    height: Extent
    width: Extent
    channels: Extent
    mean: tuple[Mean, ...]
    std: tuple[Deviation, ...]
    # left out if None, as in the files of earlier versions, so that their digests stay
    white: WhitePoint | None = Field(default=None, exclude_if=lambda white: white is None)

    @field_validator("mean", "std")
    @classmethod
    def has_one_number_per_channel(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        channels = info.data.get("channels", len(values))
        if len(values) != channels:
            raise ValueError(f"has {len(values)} numbers, but must have {channels}: one for each channel of the images")
        return values

    @classmethod
    def example(cls) -> Self:
        """Return the description of RGB images of 224x224 pixels, which every architecture accepts."""
        return cls(height=224, width=224, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """Return height, width and channels."""
        return self.height, self.width, self.channels

    @property
    def num_features(self) -> int:
        return prod(self.row_shape)

    def reads_samples_of(self, other: spec.Inputs) -> bool:
        """Return True if a model for these images can read the stored images that `other` describes: their white is the same, too."""
        return super().reads_samples_of(other) and self.white == getattr(other, "white", None)

    def refuse_smaller(self, side: int, *, model: str, instead: str) -> None:
        """Raise Refusal if a side is shorter than `side`, which `model` needs. `instead` is a model for smaller images."""
        if min(self.height, self.width) < side:
            raise Refusal(
                f"model.name: {model} needs images of at least {side}x{side}, but these are {self.height}x{self.width}: "
                f"write `model.name: {instead}`"
            )


Inputs = ImageInputs
