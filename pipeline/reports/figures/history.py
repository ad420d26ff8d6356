"""Plots the training history: losses, accuracies and the learning rate by step."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from pipeline.reports.figures import canvas
from pipeline.reports.recorded import Row, points

CURVES = {"train": canvas.BLUE, "valid": canvas.VERMILION}
LOSSES = {"train": "train/objective", "valid": "valid/loss"}
ACCURACIES = {"train": "train/accuracy", "valid": "valid/accuracy"}
FEW = 40
"""A curve with at most this many points has a marker at each point."""
WIDE = 20.0
"""The loss axis is logarithmic if the largest loss is at least this multiple of the smallest, and all are above 0."""


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Plot the losses, the accuracies and the learning rate by step, and write the figure to `path`.

    `rows` are the rows of `plots/train/history.csv`. Their values may be text or numbers. Empty values, NaN and infinity are left out.
    """
    if not rows:
        canvas.note(path, "Training history", "The training recorded no rows.")
        return
    with canvas.figure(path, 7.2, 7.4) as figure:
        losses, accuracies, rates = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.6))
        figure.suptitle("Training history")
        plot_losses(losses, rows)
        plot_accuracies(accuracies, rows)
        plot_rates(rates, rows)
        figure.align_ylabels()
        figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=len(CURVES))


def plot_losses(axes: Axes, rows: Sequence[Row]) -> None:
    plot_curves(axes, rows, LOSSES)
    axes.set_ylabel("train objective,\nvalid loss (nats)")
    values = [value for name in LOSSES.values() for _, value in points(rows, name)]
    if values and min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if max(values) / min(values) > 1000 else (1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def plot_accuracies(axes: Axes, rows: Sequence[Row]) -> None:
    plot_curves(axes, rows, ACCURACIES)
    axes.set_ylabel("accuracy (%)")
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))


def plot_rates(axes: Axes, rows: Sequence[Row]) -> None:
    axes.plot(*columns(rows, "learning_rate"), color=canvas.GREEN, linewidth=1.4, marker="." if len(rows) == 1 else None)
    axes.set(xlabel="step (optimizer updates)", ylabel="learning rate")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def plot_curves(axes: Axes, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    """Plot one curve per split. `names` maps each split to the name of its column in `rows`. A split without values has no curve."""
    for split, colour in CURVES.items():
        steps, values = columns(rows, names[split])
        if steps:
            axes.plot(steps, values, color=colour, label=split, linewidth=1.4, marker="." if len(steps) <= FEW else None)


def columns(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    found = list(points(rows, name))
    return [step for step, _ in found], [value for _, value in found]
