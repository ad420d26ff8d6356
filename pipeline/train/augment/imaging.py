"""Affine maps and grey values, which several transforms of images use."""

import torch
from torch import Tensor
from torch.nn import functional

LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the grey value of a pixel, as torchvision rounds those of ITU-R BT.601."""


def signed(uniform: Tensor) -> Tensor:
    """Map numbers from 0 to 1 to numbers from -1 to 1."""
    return 2 * uniform - 1


def grey(images: Tensor) -> Tensor:
    """Return the grey values (n, 1, height, width) of images with one or three channels."""
    if images.shape[1] == 1:
        return images
    red, green, blue = torch.split(images, 1, dim=1)
    found: Tensor = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return found


def warped(
    images: Tensor,
    *,
    degrees: Tensor,
    scale: Tensor | float = 1.0,
    shear_x: Tensor | float = 0.0,
    shear_y: Tensor | float = 0.0,
    move_x: Tensor | float = 0.0,
    move_y: Tensor | float = 0.0,
) -> Tensor:
    """Return the images sheared, rotated about the centre (counterclockwise), scaled, and moved to the right and down, by bilinear interpolation.

    All parameters are of each image, (n,). What comes from outside the image is black. `shear_x` shifts each row to the left by so many pixels more
    than the row above it, `shear_y` each column up.
    """
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    # the pixel (x, y) of the result, measured from the centre, comes from (a x + b y, c x + d y)
    a, b = cos + shear_x * sin, shear_x * cos - sin
    c, d = sin + shear_y * a, cos + shear_y * b
    height, width = images.shape[2:]
    x, y = (torch.arange(extent, device=images.device) - (extent - 1) / 2 for extent in (width, height))
    x, y = x[None, None, :] - of_each(move_x), y[None, :, None] - of_each(move_y)
    a, b, c, d = (entry[:, None, None] for entry in (a, b, c, d))
    grid = torch.stack([(a * x + b * y) * (2 / width), (c * x + d * y) * (2 / height)], dim=-1)
    return functional.grid_sample(images, grid, align_corners=False)


def of_each(value: Tensor | float) -> Tensor | float:
    """Return a value of each image (n,) as (n, 1, 1), and one of all images as it is: on a GPU, a tensor of it would have to be copied from the host."""
    return value[:, None, None] if isinstance(value, Tensor) else value
