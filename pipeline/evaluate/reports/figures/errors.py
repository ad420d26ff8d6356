"""Figure of a regression: the predicted beside the actual number of each sample."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluate.reports.figures import canvas

Floats = NDArray[np.float64]
MOST_COLUMNS, MOST_POINTS = 4, 5000
LONGEST_NAME = 40


def plot(path: Path, actual: Floats, predicted: Floats, columns: Sequence[str]) -> None:
    """Plot the predictions (samples, columns) above the residuals, predicted minus actual, of at most MOST_COLUMNS columns, and write the figure to `path`.

    Of more than MOST_POINTS samples, evenly spaced ones are drawn.
    """
    shown = np.linspace(0, len(actual) - 1, min(len(actual), MOST_POINTS)).astype(int)
    count = min(len(columns), MOST_COLUMNS)
    with canvas.figure(path, 4.2 * count, 6.4) as figure:
        above, below = figure.subplots(2, count, sharex="col", squeeze=False, height_ratios=(3, 1.4))
        for number in range(count):
            x, y = actual[shown, number], predicted[shown, number]
            ends = [min(x.min(), y.min()), max(x.max(), y.max())]
            above[number].plot(ends, ends, color="0.6", linewidth=1)
            above[number].scatter(x, y, s=8, alpha=0.5, color=canvas.BLUE, linewidths=0)
            above[number].set(title=canvas.label(columns[number], number, LONGEST_NAME), ylabel="predicted")
            below[number].axhline(0, color="0.6", linewidth=1)
            below[number].scatter(x, y - x, s=8, alpha=0.5, color=canvas.BLUE, linewidths=0)
            below[number].set(xlabel="actual", ylabel="predicted - actual")
