"""Plots the loss of a language model by the position of the token in its window."""

from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from pipeline.reports.figures import canvas

FEW = 40
"""A curve with at most this many points has a marker at each point."""


def plot(path: Path, losses: NDArray[np.float64]) -> None:
    """Plot the mean loss of the test tokens by their position in the window, the text that the model reads at once.

    `losses` (length,) has the mean loss in nats at each position. A model that uses its context has lower losses at later positions.
    """
    with canvas.figure(path, 7.2, 4) as figure:
        figure.suptitle("Loss by position in the window")
        axes = figure.subplots()
        axes.plot(np.arange(1, len(losses) + 1), losses, color=canvas.BLUE, linewidth=1.2, marker="." if len(losses) <= FEW else None)
        axes.set(xlabel="position: number of tokens that the model has read", ylabel="test loss (nats per token)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
