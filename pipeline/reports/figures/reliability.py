"""Plots the reliability diagram: accuracy by confidence, and the histogram of confidences."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from pipeline.counted import counted
from pipeline.reports.calibration import Calibration
from pipeline.reports.figures import canvas


def plot(path: Path, calibration: Calibration) -> None:
    """Plot two diagrams: accuracy by confidence at the top, and the histogram of confidences at the bottom."""
    with canvas.figure(path, 6.4, 6.4) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        total = calibration.samples.sum()
        figure.suptitle(f"Reliability on {counted(total, 'test sample', ',')}, expected calibration error {calibration.error:.2%}")
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
