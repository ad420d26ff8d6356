"""Plots the figures of the page, with the functions of the stage evaluate. Each has the table that stands for it in the model card."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import MaxNLocator

from pipeline.evaluate.reports.figures import canvas, curves
from pipeline.evaluate.reports.recorded import Row, points
from pipeline.inference.scores import Calibration
from pipeline.tools.report.page import Cell, Figure, Number, Table

Series = Sequence[tuple[int, float]]
"""The points (x, y) of a curve, in ascending order of x."""
WIDTH, HEIGHT = 4.6, 2.7
SIDE = 5.8
"""Width and height of the reliability diagram, in inches as above."""
MOST_POINTS = 400
"""A curve with more points is thinned, because a reader could not distinguish them."""
MOST_ROWS = 12
"""Largest number of rows of a table that stands for a figure."""


def of_training(rows: Sequence[Row], metric: str, unit: str) -> tuple[Figure, ...]:
    """Plot the losses in `unit`, `metric` of train and valid, the learning rate and the gradient norm; without those that have no values.

    `metric` is a name without split; "" for none.
    """
    plotted = (
        history(f"loss ({unit})", rows, curves.LOSSES, partial(curves.plot_losses, unit=unit)),
        scaled(metric.replace("_", " "), rows, {split: f"{split}/{metric}" for split in curves.CURVES}),
        history("learning rate", rows, {"learning rate": "learning_rate"}, curves.plot_rates),
        scaled("gradient norm", rows, {"train": "train/gradient_norm"}),
    )
    return tuple(figure for figure in plotted if figure)


def scaled(title: str, rows: Sequence[Row], columns: Mapping[str, str]) -> Figure | None:
    def plot(axes: Axes, rows: Sequence[Row]) -> None:
        curves.plot_curves(axes, rows, columns)
        curves.set_scale(axes, [value for name in columns.values() for _, value in points(rows, name)])

    return history(title, rows, columns, plot)


def history(title: str, rows: Sequence[Row], columns: Mapping[str, str], plot: Callable[[Axes, Sequence[Row]], None]) -> Figure | None:
    """Return a figure that `plot` fills from the rows of the training history; None if all values are missing.

    `columns` maps the name of each curve to its column. `plot` receives rows with at most about MOST_POINTS values of each column.
    """
    series = {name: found for name, column in columns.items() if (found := list(points(rows, column)))}
    if not series:
        return None
    fewer: list[Row] = [
        {"step": step, columns[name]: value} for name, found in series.items() for step, value in thinned(found, MOST_POINTS)
    ]

    def draw(figure: MatplotlibFigure) -> None:
        axes = figure.subplots()
        plot(axes, fewer)
        axes.set(xlabel="step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if len(series) > 1:
            axes.legend()

    return Figure(title, canvas.svg(WIDTH, HEIGHT, draw), table(title, "step", series))


def position_losses(series: Series) -> Figure:
    """Plot the mean loss at each position of the window, from 1."""
    title, values = "loss by position (nats)", [loss for _, loss in series]
    svg = canvas.svg(WIDTH, HEIGHT, lambda figure: curves.plot_position_losses(figure.subplots(), values))
    return Figure(title, svg, table(title, "tokens read", {"test": series}))


def reliability(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Plot the rows of `reliability.csv`, one for each bin that is not empty."""
    centres, confidence, accuracy = (np.array([float(row[name]) for row in rows]) for name in ("bin_centre", "confidence", "accuracy"))
    samples = np.array([int(row["samples"]) for row in rows])
    calibration = Calibration(num_bins(centres), centres, confidence, accuracy, samples)
    bins = zip(confidence.tolist(), accuracy.tolist(), samples.tolist(), strict=True)
    cells = tuple(tuple(map(Number, values)) for values in bins)
    return Figure(
        "accuracy, and below it the share of the predictions",
        canvas.svg(SIDE, SIDE, lambda figure: curves.plot_diagrams(figure, calibration)),
        Table(("mean confidence", "accuracy", "predictions"), cells),
    )


def num_bins(centres: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """Return the number of bins, from the centres of those that are not empty: each centre is (i + 0.5) / num_bins."""
    for number in range(1, 1001):
        places = centres * number - 0.5
        if np.allclose(places, places.round(), atol=1e-6):
            return number
    return len(centres)


def table(title: str, x_label: str, series: Mapping[str, Series]) -> Table:
    """Return about MOST_ROWS rows at most: evenly spaced points of the curve with the fewest points, and the other curves' values there."""
    values = {name: dict(curve) for name, curve in series.items()}
    rows: list[tuple[Cell, ...]] = [
        (Number(x), *(Number(each[x]) if x in each else "" for each in values.values()))
        for x, _ in thinned(min(series.values(), key=len), MOST_ROWS)
    ]
    return Table((x_label, *series), tuple(rows), title)


def thinned(series: Series, most: int) -> list[tuple[int, float]]:
    """Return at most about `most` of the points, evenly spaced, with the last one."""
    return list(dict.fromkeys((*series[:: -(-len(series) // most)], series[-1])))
