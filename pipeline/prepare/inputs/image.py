"""Computes the mean and standard deviation of each channel over the train split. Worker processes import this module, so it imports little."""

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pipeline.inputs.image.description import ImageInputs

BYTE = 255.0
MOST_LINES = 16


class Sums(NamedTuple):
    """The number of pixels of some images; the sums (channels,) of their values, and of the squares of these."""

    num_pixels: int
    sums: NDArray[np.int64]
    squares: NDArray[np.int64]


class Statistics:
    """Sums the pixel values of each channel and their squares. The sums are exact integers, so the order of the samples does not matter."""

    dtype: ClassVar[type[np.generic]] = np.uint8

    def __init__(self, row_shape: tuple[int, int, int], white: int | None = None) -> None:
        """Begin without samples. `white` is the value of `source.white`, which the description keeps."""
        self.row_shape, self.white = row_shape, white
        self.count = 0
        self.sums = np.zeros(row_shape[2], dtype=np.int64)
        self.squares = np.zeros(row_shape[2], dtype=np.int64)

    def summarize(self, images: NDArray[np.uint8]) -> Sums:
        """Return the sums of images (n, height, width, channels).

        For speed, up to MOST_LINES lines of pixels are summed as one long row. A longer row might not fit in the CPU cache.
        """
        height, width, channels = self.row_shape
        rows = images.reshape(-1, math.gcd(height, MOST_LINES) * width * channels)
        return Sums(images[..., 0].size, self.by_channel(rows, 255), self.by_channel(np.square(rows, dtype=np.uint16), 255**2))

    def add(self, summary: Sums) -> None:
        """Add the sums of some images to those of all."""
        self.count += summary.num_pixels
        self.sums += summary.sums
        self.squares += summary.squares

    def by_channel(self, rows: NDArray[Any], most: int) -> NDArray[np.int64]:
        """Return the sum over all pixels for each channel, (channels,).

        `rows` is (n, pixels * channels): the channels of a pixel are neighbours. `most` is the largest value that `rows` may have. It
        decides the type in which the sum is computed: the smallest integer type that cannot overflow.
        """
        enough = np.min_scalar_type(len(rows) * most)
        summed: NDArray[np.int64] = rows.sum(axis=0, dtype=enough).reshape(-1, len(self.sums)).sum(axis=0, dtype=np.int64)
        return summed

    def inputs(self) -> "ImageInputs":
        """Return the description of the images, with the mean and standard deviation of each channel for pixel values divided by 255.

        For a channel in which all values are equal, the standard deviation is given as 1.
        """
        from pipeline.inputs.image.description import ImageInputs  # late: worker processes do not need it

        mean = self.sums / self.count
        variance = self.squares / self.count - mean**2
        std = np.where(variance > 0, np.sqrt(np.maximum(variance, 0)), BYTE)
        height, width, channels = self.row_shape
        return ImageInputs(
            height=height,
            width=width,
            channels=channels,
            mean=tuple(float(m / BYTE) for m in mean),
            std=tuple(float(s / BYTE) for s in std),
            white=self.white,
        )
