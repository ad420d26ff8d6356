"""Turns the hue of colour images by a random angle, and keeps saturation and value: torchvision's ColorJitter(hue=...)."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipeline.train.augment.imaging import signed
from pipeline.train.transform_params import TransformSettings, Uniform


class Settings(TransformSettings):
    name: Literal["hue"]
    strength: Annotated[float, Field(gt=0, le=0.5)]
    """The largest angle in both directions, as a share of the colour circle."""

    channels: ClassVar[tuple[int, ...]] = (3,)

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        red, green, blue = images.unbind(1)
        value, least = images.amax(1), images.amin(1)
        chroma = value - least
        divisor = torch.where(chroma == 0, 1, chroma)
        sixths = torch.where(
            value == red, (green - blue) / divisor, torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
        )
        sixths = sixths + 6 * self.strength * signed(uniform())[:, None, None]
        places = [torch.remainder(start + sixths, 6) for start in (5, 3, 1)]
        return torch.stack([value - chroma * torch.minimum(place, 4 - place).clamp(0, 1) for place in places], dim=1)
