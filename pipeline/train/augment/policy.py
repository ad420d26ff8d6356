"""The 14 changes of images from which TrivialAugment and RandAugment choose: those of torchvision, with bilinear interpolation."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.train.augment.imaging import grey, warped
from pipeline.train.augment.pixels import BYTE

LEVELS = 30
CHANGES = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
    *("posterize", "solarize", "autocontrast", "equalize"),
)
NUMBERS = {name: number for number, name in enumerate(CHANGES)}


class Space(NamedTuple):
    """The strengths at the highest level: of shearing, of a move in pixels or as a share of the image's side, of rotation in degrees, of colours, and
    the number of bits that posterizing removes.
    """

    shear: float
    pixels: float
    share: float
    degrees: float
    colour: float
    bits: int


WIDE = Space(0.99, 32.0, 0.0, 135.0, 0.99, 6)
NARROW = Space(0.3, 0.0, 150 / 331, 30.0, 0.9, 4)


def changed(images: Tensor, space: Space, chosen: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Return images (n, channels, height, width) from 0 to 1, each after one of CHANGES.

    `chosen` and `sign` (n,) are uniform random numbers. They choose the change and the direction of its strength. `level` (n,) is from 0 to 1.
    """
    number, both = (chosen * len(CHANGES)).long(), torch.where(sign < 0.5, -level, level)
    values = (moved(images, space, number, both) * BYTE).round()
    number, level, both = (each[:, None, None, None] for each in (number, level, both))
    blend = (number >= NUMBERS["brightness"]) & (number <= NUMBERS["sharpness"])
    values = torch.where(blend, blended(values, number, 1 + space.colour * both).clamp(0, BYTE).round(), values)
    step = (((level * space.bits).round() * 0.6931471805599453).exp()).round()  # exp2 rounds differently in other batches
    values = torch.where(number == NUMBERS["posterize"], (values / step).floor() * step, values)
    values = torch.where((number == NUMBERS["solarize"]) & (values >= BYTE * (1 - level)), BYTE - values, values)
    values = torch.where(number == NUMBERS["autocontrast"], stretched(values), values)
    return torch.where(number == NUMBERS["equalize"], equalized(values), values) / BYTE


def moved(images: Tensor, space: Space, number: Tensor, strength: Tensor) -> Tensor:
    """Return the images, sheared, moved or rotated where `number` (n,) says so."""
    shear_x, shear_y, across, down, turned = (
        torch.where(number == NUMBERS[name], strength, 0) for name in ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
    )
    height, width = images.shape[2:]
    shear_x, shear_y = shear_x * space.shear, shear_y * space.shear
    found = warped(
        images,
        degrees=turned * space.degrees,
        shear_x=shear_x,
        shear_y=shear_y,
        move_x=(across * (space.pixels + space.share * width)).trunc() - shear_x * height / 2,  # the first row stays where it is
        move_y=(down * (space.pixels + space.share * height)).trunc() - shear_y * width / 2,
    )
    moves = (number >= NUMBERS["shear_x"]) & (number <= NUMBERS["rotate"])
    return torch.where(moves[:, None, None, None], found, images)


def blended(values: Tensor, number: Tensor, factor: Tensor) -> Tensor:
    """Return bytes, of which the difference to black, grey, their mean grey or a smooth image is multiplied by `factor`."""
    shade = grey(values)
    mean = shade.floor().sum((1, 2, 3), keepdim=True, dtype=torch.float64) / shade[0].numel()  # exact in every batch: whole numbers
    other = torch.where(number == NUMBERS["color"], shade, torch.where(number == NUMBERS["contrast"], mean.float(), 0))
    other = torch.where(number == NUMBERS["sharpness"], smoothed(values), other)
    return other + factor * (values - other)


def smoothed(values: Tensor) -> Tensor:
    """Return the weighted mean of each pixel (5/13) and its eight neighbours (1/13). The border stays."""
    height, width = values.shape[2:]
    if min(height, width) < 3:
        return values
    total = 4 * values[:, :, 1:-1, 1:-1]
    for down in range(3):
        for across in range(3):
            total = total + values[:, :, down : height - 2 + down, across : width - 2 + across]
    border = torch.ones(height, width, dtype=torch.bool, device=values.device)
    border[1:-1, 1:-1] = False
    return torch.where(border, values, functional.pad((total / 13).round(), (1, 1, 1, 1)))


def stretched(values: Tensor) -> Tensor:
    """Return bytes, whose darkest value in each channel has become 0, and the brightest 255."""
    least, most = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    return torch.where(least == most, values, ((values - least) * (BYTE / torch.where(least == most, 1, most - least))).round())


def equalized(values: Tensor) -> Tensor:
    """Return bytes, whose values are about equally frequent in each channel."""
    places = values.flatten(2).long()
    counts = torch.zeros(*places.shape[:2], BYTE + 1, dtype=torch.int64, device=values.device).scatter_add_(
        2, places, torch.ones_like(places)
    )
    total = counts.cumsum(2)
    brightest = counts.gather(2, places.amax(2, keepdim=True))  # of the brightest value
    step = (places.shape[2] - brightest) // BYTE
    table = functional.pad((total + step // 2)[:, :, :-1] // step.clamp(min=1), (1, 0)).clamp(0, BYTE)
    return torch.where(step[..., None] > 0, table.gather(2, places).view_as(values).float(), values)
