"""Figures of curves: the history of a training, the loss by position of a language model, the reliability of a classifier, and the errors of a regression."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from pipeline.core.refusal import counted
from pipeline.evaluate.reports.figures import canvas
from pipeline.evaluate.reports.recorded import Row, points
from pipeline.inference.scores import Calibration

CURVES = {"train": canvas.BLUE, "valid": canvas.VERMILION}
LOSSES = {"train": "train/objective", "valid": "valid/loss"}
MOST_COLUMNS, MOST_POINTS = 4, 5000
"""If a regression has more columns, the first are shown; of more samples, evenly spaced ones are."""
FEW = 40
"""A curve with at most this many points has a marker at each point."""
WIDE = 20.0
"""An axis is logarithmic if the largest value is at least this multiple of the smallest, and all are above 0."""


def plot_history(path: Path, rows: Sequence[Row], metric: str = "accuracy", unit: str = "nats") -> None:
    """Plot the losses in `unit`, `metric` and the learning rate by step, and write the figure to `path`.

    `rows` are the rows of `plots/train/history.csv`. Their values may be text or numbers. Empty values, NaN and infinity are left out.
    """
    if not rows:
        canvas.note(path, "Training history", "The training recorded no rows.")
        return
    with canvas.figure(path, 7.2, 7.4) as figure:
        losses, metrics, rates = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.6))
        figure.suptitle("Training history")
        plot_losses(losses, rows, unit)
        plot_metric(metrics, rows, metric)
        plot_rates(rates, rows)
        figure.align_ylabels()
        figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=len(CURVES))


def plot_losses(axes: Axes, rows: Sequence[Row], unit: str = "nats") -> None:
    plot_curves(axes, rows, LOSSES)
    axes.set_ylabel(f"train objective,\nvalid loss ({unit})")
    set_scale(axes, [value for name in LOSSES.values() for _, value in points(rows, name)])


def set_scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic if the curves through `values` would be flat on a linear one: see WIDE."""
    if values and min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if max(values) / min(values) > 1000 else (1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def plot_metric(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    plot_curves(axes, rows, {split: f"{split}/{metric}" for split in CURVES})
    axes.set_ylabel("accuracy (%)" if metric == "accuracy" else metric)
    if metric == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))


def plot_rates(axes: Axes, rows: Sequence[Row]) -> None:
    axes.plot(*columns(rows, "learning_rate"), color=canvas.GREEN, linewidth=1.4, marker="." if len(rows) == 1 else None)
    axes.set(xlabel="step (optimizer updates)", ylabel="learning rate")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def plot_curves(axes: Axes, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    """Plot one curve per split. `names` maps each split to the name of its column in `rows`. A split without values has no curve."""
    for split, name in names.items():
        steps, values = columns(rows, name)
        if steps:
            axes.plot(steps, values, color=CURVES[split], label=split, linewidth=1.4, marker="." if len(steps) <= FEW else None)


def columns(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    found = list(points(rows, name))
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
        total = calibration.samples.sum()
        figure.suptitle(f"Reliability on {counted(total, 'test sample', ',')}, expected calibration error {calibration.error:.2%}")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        plot_accuracy(upper, calibration)
        plot_histogram(lower, calibration)
        figure.align_ylabels()
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def plot_accuracy(axes: Axes, calibration: Calibration) -> None:
    width = 1 / calibration.num_bins
    axes.bar(calibration.centres, calibration.accuracy, width, color=canvas.BLUE, alpha=0.35, edgecolor="white", label="accuracy of a bin")
    axes.plot([0, 1], [0, 1], "--", color=canvas.MUTED, linewidth=1, label="perfect calibration")
    axes.plot(
        calibration.confidence,
        calibration.accuracy,
        "o-",
        color=canvas.VERMILION,
        markersize=4.5,
        clip_on=False,
        linewidth=1.4,
        label="at its mean confidence",
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy (%)")
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))


def plot_histogram(axes: Axes, calibration: Calibration) -> None:
    shares = calibration.samples / calibration.samples.sum()
    axes.bar(calibration.centres, shares, 1 / calibration.num_bins, color=canvas.BLUE, edgecolor="white")
    axes.set(xlim=(0, 1), xlabel="confidence: probability of the predicted class (%)", ylabel="samples (%)")
    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))


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
