"""Plots the images of the most confident wrong predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pipeline.evaluate.reports.figures import canvas
from pipeline.evaluate.reports.predictions import Predictions

TITLE = "Most confident mistakes"
MOST_SHOWN = 100
"""Upper bound for the number of images: a larger figure would not fit on a screen."""
LONGEST_LABEL = 16
TILE, PICTURE = 1.8, 1.6
TITLE_HEIGHT, NUMBER_HEIGHT, CAPTION_HEIGHT = 0.5, 0.2, 0.65


@dataclass(frozen=True)
class Grid:
    """The position of each image; sizes are in inches. Positions are computed here, because matplotlib's layouts would shrink the images to
    fit the captions.
    """

    rows: int
    columns: int
    picture_height: float

    @classmethod
    def of(cls, shown: int, *, aspect: float) -> "Grid":
        """Choose the numbers of rows and columns for `shown` images.

        The number of columns is that of a square grid, or up to 1.6 times as large if fewer places then stay empty. `aspect` is height /
        width of an image.
        """
        square = int(np.ceil(np.sqrt(shown)))
        columns = min(range(square, int(1.6 * square) + 1), key=lambda columns: -shown % columns)
        return cls(-(-shown // columns), columns, PICTURE * float(np.clip(aspect, 0.4, 1.5)))

    @property
    def width(self) -> float:
        return max(self.columns * TILE, 4.0)

    @property
    def height(self) -> float:
        return TITLE_HEIGHT + self.rows * self.row_height

    @property
    def row_height(self) -> float:
        return NUMBER_HEIGHT + self.picture_height + CAPTION_HEIGHT

    def rectangle(self, place: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of the image at position `place` (from 0, row by row), as fractions of the figure."""
        row, column = divmod(place, self.columns)
        left = (self.width - self.columns * TILE) / 2 + column * TILE + (TILE - PICTURE) / 2
        bottom = (self.rows - row - 1) * self.row_height + CAPTION_HEIGHT
        return left / self.width, bottom / self.height, PICTURE / self.width, self.picture_height / self.height


def plot(path: Path, *, images: NDArray[np.uint8], predictions: Predictions, classes: Sequence[str], most: int) -> None:
    """Plot at most `most` of the wrongly predicted samples, those with the highest confidence first.

    `images` (n, height, width, channels) are the images of the test split; only the plotted ones are read. If there is nothing to plot,
    the figure says why.
    """
    wrong = np.count_nonzero(~predictions.correct)
    shown = predictions.most_confident_mistakes(min(most, MOST_SHOWN))
    if len(shown) == 0:
        why = (
            f"All {len(predictions.targets):,} test samples are predicted correctly."
            if wrong == 0
            else "evaluate.mistakes is 0, so none are shown."
        )
        canvas.note(path, TITLE, why)
        return
    grid = Grid.of(len(shown), aspect=images.shape[1] / images.shape[2])
    with canvas.figure(path, grid.width, grid.height) as figure:
        figure.set_layout_engine("none")
        figure.suptitle(f"{TITLE}: {len(shown)} of {wrong:,}", y=1 - 0.12 / grid.height)
        for place, sample in enumerate(shown):
            axes = figure.add_axes(grid.rectangle(place))
            axes.set_axis_off()
            show(axes, images[sample])
            caption(axes, predictions, sample, classes)


def show(axes: Axes, image: NDArray[np.uint8]) -> None:
    """Show an image with three channels in colour. Show any other image in grey, as the mean of its channels."""
    picture = image if image.shape[-1] == 3 else image.mean(axis=-1)
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255)


def caption(axes: Axes, predictions: Predictions, sample: int, classes: Sequence[str]) -> None:
    actual, answer = (int(numbers[sample]) for numbers in (predictions.targets, predictions.predicted))
    names = [canvas.label(classes[number], number, LONGEST_LABEL) for number in (actual, answer)]
    axes.set_title(f"sample {sample}", size=7.5, color=canvas.MUTED, pad=3)
    text = f"actual: {names[0]}\npredicted: {names[1]}\nconfidence: {predictions.confidence[sample]:.1%}"
    axes.annotate(text, (0.5, 0), (0, -4), xycoords="axes fraction", textcoords="offset points", ha="center", va="top", size=7.5)
