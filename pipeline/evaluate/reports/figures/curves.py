"""Figures of curves: the history of a training, the loss by position of a language model, the reliability of a classifier, and the errors of a regression."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from pipeline.core.refusal import counted
from pipeline.evaluate.reports.figures import canvas
from pipeline.evaluate.reports.recorded import Row
from pipeline.inference.scores import Calibration

CURVES = {"train": canvas.BLUE, "valid": canvas.VERMILION}
MOST_COLUMNS, MOST_POINTS = 4, 5000
"""If a regression has more columns, the first are shown; of more samples, evenly spaced ones are."""
FEW = 40
"""A curve with at most this many points has a marker at each point."""
WIDE = 20.0
"""An axis is logarithmic if the largest value is at least this multiple of the smallest, and all are above 0."""


def plot_history(path: Path, rows: Sequence[Row], metric: str = "accuracy", unit: str = "nats") -> None:
    """Plot the losses in `unit`, `metric` and the learning rate by step, and write the figure to `path`.

    `rows` are the rows of `plots/train/history.csv`. Empty values, NaN and infinity are left out.
    """
    with canvas.figure(path, 7.2, 7.4) as figure:
        losses, metrics, rates = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.6))
        figure.suptitle("Training history")
        values = plot_curves(losses, rows, {"train": "train/objective", "valid": "valid/loss"})
        losses.set_ylabel(f"train objective,\nvalid loss ({unit})")
        if values and min(values) > 0 and max(values) / min(values) >= WIDE:
            losses.set_yscale("log")
            losses.yaxis.set_major_locator(LogLocator(subs=(1,) if max(values) / min(values) > 1000 else (1, 2, 5)))
            losses.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            losses.yaxis.set_minor_formatter(NullFormatter())
        plot_curves(metrics, rows, {split: f"{split}/{metric}" for split in CURVES})
        metrics.set_ylabel("accuracy (%)" if metric == "accuracy" else metric)
        if metric == "accuracy":
            metrics.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
        rates.plot(*columns(rows, "learning_rate"), color=canvas.GREEN, linewidth=1.4, marker="." if len(rows) == 1 else None)
        rates.set(xlabel="step (optimizer updates)", ylabel="learning rate")
        rates.set_ylim(bottom=0)
        rates.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=False)
        rates.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        figure.align_ylabels()
        figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=len(CURVES))


def plot_curves(axes: Axes, rows: Sequence[Row], names: Mapping[str, str]) -> list[float]:
    """Plot one curve per split, and return all values. `names` maps each split to its column. A split without values has no curve."""
    plotted = list[float]()
    for split, name in names.items():
        steps, values = columns(rows, name)
        if steps:
            axes.plot(steps, values, color=CURVES[split], label=split, linewidth=1.4, marker="." if len(steps) <= FEW else None)
        plotted += values
    return plotted


def columns(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Return the steps and the values of the column `name`, where the value is a finite number."""
    cells = [(int(row["step"]), float(row[name])) for row in rows if row.get(name) not in (None, "")]
    found = [(step, value) for step, value in cells if math.isfinite(value)]
    return [step for step, _ in found], [value for _, value in found]


def plot_positions(path: Path, losses: NDArray[np.float64]) -> None:
    """Plot the mean loss of the test tokens by their position in the window, the text that the model reads at once.

    `losses` (length,) has the mean loss in nats at each position. A model that uses its context has lower losses at later positions.
    """
    with canvas.figure(path, 7.2, 4) as figure:
        figure.suptitle("Loss by position in the window")
        axes = figure.subplots()
        axes.plot(np.arange(1, len(losses) + 1), losses, color=canvas.BLUE, linewidth=1.2, marker="." if len(losses) <= FEW else None)
        axes.set(xlabel="position: number of tokens that the model has read", ylabel="test loss (nats per token)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_reliability(path: Path, calibration: Calibration) -> None:
    """Plot two diagrams: accuracy by confidence at the top, and the histogram of confidences at the bottom."""
    with canvas.figure(path, 6.4, 6.4) as figure:
        total, width = calibration.samples.sum(), 1 / calibration.num_bins
        figure.suptitle(f"Reliability on {counted(total, 'test sample', ',')}, expected calibration error {calibration.error:.2%}")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        bars = {"color": canvas.BLUE, "edgecolor": "white"}
        upper.bar(calibration.centres, calibration.accuracy, width, alpha=0.35, label="accuracy of a bin", **bars)
        upper.plot([0, 1], [0, 1], "--", color=canvas.MUTED, linewidth=1, label="perfect calibration")
        style = {"color": canvas.VERMILION, "markersize": 4.5, "linewidth": 1.4, "clip_on": False}
        upper.plot(calibration.confidence, calibration.accuracy, "o-", label="at its mean confidence", **style)
        upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy (%)")
        lower.bar(calibration.centres, calibration.samples / total, width, **bars)
        lower.set(xlim=(0, 1), xlabel="confidence: probability of the predicted class (%)", ylabel="samples (%)")
        for axis in (upper.yaxis, lower.xaxis, lower.yaxis):
            axis.set_major_formatter(PercentFormatter(1, symbol=""))
        figure.align_ylabels()
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def plot_errors(path: Path, actual: NDArray[np.float64], predicted: NDArray[np.float64], columns: Sequence[str]) -> None:
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
            above[number].set(title=canvas.label(columns[number], number), ylabel="predicted")
            below[number].axhline(0, color="0.6", linewidth=1)
            below[number].scatter(x, y - x, s=8, alpha=0.5, color=canvas.BLUE, linewidths=0)
            below[number].set(xlabel="actual", ylabel="predicted - actual")
