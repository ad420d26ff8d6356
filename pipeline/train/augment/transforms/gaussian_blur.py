"""Blurs images with a Gaussian of random width: torchvision's GaussianBlur."""

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from pipeline.train.transform_params import Probability, TransformSettings, Uniform

Sigma = Annotated[float, Field(ge=0.05, le=10)]


class Settings(TransformSettings):
    name: Literal["gaussian_blur"]
    probability: Probability
    radius: Annotated[int, Field(ge=1, le=30)]
    """The number of neighbours in each direction; less than the height and the width of the image."""
    smallest_sigma: Sigma
    """The smallest standard deviation, in pixels."""
    largest_sigma: Sigma
    """The largest standard deviation, in pixels."""

    @model_validator(mode="after")
    def refuse_no_sigma(self) -> Self:
        if self.smallest_sigma > self.largest_sigma:
            raise ValueError("smallest_sigma is above largest_sigma: exchange them")
        return self

    @property
    def least_side(self) -> int:
        return self.radius + 1

    def changed(self, images: Tensor, uniform: Uniform) -> Tensor:
        happens, place = uniform(2)[:, :, None, None, None].unbind(1)
        sigma = self.smallest_sigma + (self.largest_sigma - self.smallest_sigma) * place
        weights = [(-0.5 * (offset / sigma) ** 2).exp() for offset in range(-self.radius, self.radius + 1)]
        total, blurred = sum(weights), images
        for axis in (2, 3):
            border = (0, 0, self.radius, self.radius) if axis == 2 else (self.radius, self.radius, 0, 0)
            padded = functional.pad(blurred, border, mode="reflect")
            shifted = (padded.narrow(axis, first, images.shape[axis]) for first in range(len(weights)))
            blurred = sum(weight / total * part for weight, part in zip(weights, shifted, strict=True))  # type: ignore[assignment]  # not 0
        return torch.where(happens < self.probability, blurred, images)
