"""The properties of the data that a model depends on: image shape, class names and normalisation constants."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Extent = Annotated[int, Field(ge=1, le=65_535)]
Mean = Annotated[float, Field(ge=0, le=1)]
Deviation = Annotated[float, Field(gt=0, le=1)]
"""Standard deviation of a channel scaled to [0, 1]: at most 1/2, or 1 for a constant channel."""


class Spec(BaseModel):
    """Describes images of one size with one class each; `mean` and `std` normalise each channel of `byte / 255`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["image"] = "image"
    shape: tuple[Extent, Extent, Extent]
    """Height, width, channels."""
    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    mean: tuple[Mean, ...]
    std: tuple[Deviation, ...]

    @field_validator("classes")
    @classmethod
    def differ(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(classes)) < len(classes):
            raise ValueError("two classes have the same name")
        return classes

    @field_validator("mean", "std")
    @classmethod
    def one_a_channel(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        channels = info.data.get("shape", (0, 0, len(values)))[2]
        if len(values) != channels:
            raise ValueError(f"holds {len(values)} numbers for {channels} channels")
        return values

    @property
    def height(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        return self.shape[1]

    @property
    def channels(self) -> int:
        return self.shape[2]

    @property
    def num_classes(self) -> int:
        return len(self.classes)
