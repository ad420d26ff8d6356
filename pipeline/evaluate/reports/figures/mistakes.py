"""Plots what a classifier gets wrong: the confusion matrix, its worst mistakes as images, and of several labels the scores of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import PowerNorm
from numpy.typing import NDArray

from pipeline.core.refusal import counted
from pipeline.evaluate.reports.figures import canvas
from pipeline.evaluate.reports.metrics import Floats, Integers, Predictions

MOST_COUNTED = 20
"""The cells show their counts if there are at most this many classes."""
LONGEST_TICK, MOST_BARS = 24, 40
OF_LABELS = {"average_precision": canvas.BLUE, "f1": canvas.VERMILION}


def plot_confusion(path: Path, *, targets: Integers, predicted: Integers, classes: Sequence[str]) -> None:
    """Plot the confusion matrix, with one row per actual class and one column per predicted class.

    `targets` (n,) are the actual class numbers of n samples, and `predicted` (n,) the predicted class numbers. The colour of a cell shows
    its number of samples as a share of its row. So the cells of a rare class are as visible as those of a frequent class.
    """
    counts = count(targets, predicted, len(classes))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    title = f"Confusion on {counted(counts.sum(), 'test sample', ',')}, accuracy {np.trace(counts) / counts.sum():.2%}"
    plot_counts(path, counts, shares, classes, title=title)


def plot_counts(path: Path, counts: Integers, shares: Floats, classes: Sequence[str], *, title: str, part: str = "class") -> None:
    """Plot a matrix of `counts`, with one row per actual class and one column per predicted class, and write the figure to `path`. `shares` are
    the colours of the cells, and `part` is what the axes call a class. Not all classes are named if their names would not be readable.
    """
    side_inches = float(np.clip(0.5 * len(classes), 2.4, 9.5))
    points_each = 72 * side_inches / len(classes)
    size = float(np.clip(0.8 * points_each, 5.5, 9.5))
    named = range(0, len(classes), int(np.ceil(1.1 * size / points_each)))
    names = [canvas.label(classes[number], number, LONGEST_TICK) for number in named]
    longest = max(map(len, names))
    is_upright = longest * 0.65 * size > 0.9 * named.step * points_each
    width = longest * 0.6 * size / 72
    height = width if is_upright else size / 72
    with canvas.figure(path, max(side_inches + width + 1.7, 5.2), side_inches + height + 1) as figure:
        figure.suptitle(title)
        axes = figure.add_subplot()
        # A power below 1, because errors of a few percent would be invisible beside a diagonal near 100%.
        image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.4, vmin=0, vmax=1), interpolation="nearest")
        canvas.bare(axes)
        axes.set_xticks(named, names, size=size, rotation=90 if is_upright else 0)
        axes.set_yticks(named, names, size=size)
        left_out = f" (one in {named.step} is named)" if named.step > 1 else ""
        axes.set(xlabel=f"predicted {part}{left_out}", ylabel=f"actual {part}{left_out}")
        label = f"share of the actual {part} (%)"
        scale = figure.colorbar(image, ax=axes, label=label, fraction=0.05, shrink=0.8, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
        scale.ax.set_yticklabels(["0", "1", "5", "20", "50", "100"])
        scale.ax.tick_params(length=0)
        scale.outline.set_visible(False)
        if len(classes) <= MOST_COUNTED:
            for actual, answer in zip(*np.nonzero(counts), strict=True):
                colour = "white" if shares[actual, answer] > 0.25 else canvas.INK
                axes.text(answer, actual, f"{counts[actual, answer]}", ha="center", va="center", color=colour, size=9)


def count(targets: Integers, predicted: Integers, num_classes: int) -> Integers:
    """Return an array (num_classes, num_classes): the number of samples for each actual class (row) and predicted class (column)."""
    return np.bincount(targets * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


TITLE = "Most confident mistakes"
MOST_SHOWN = 100
"""Upper bound for the number of images: a larger figure would not fit on a screen."""
LONGEST_TITLE = 16
TILE, PICTURE = 1.8, 1.6
TITLE_HEIGHT, NUMBER_HEIGHT, CAPTION_HEIGHT = 0.5, 0.2, 0.65


def grid(shown: int, *, aspect: float) -> tuple[float, float, list[tuple[float, float, float, float]]]:
    """Return the width and the height in inches of a figure of `shown` images, and the left, bottom, width and height of each image, as
    fractions of the figure. They are computed here, because matplotlib's layouts would shrink the images to fit the captions.

    The number of columns is that of a square grid, or up to 1.6 times as large if fewer places then stay empty. `aspect` is height / width
    of an image.
    """
    square = int(np.ceil(np.sqrt(shown)))
    columns = min(range(square, int(1.6 * square) + 1), key=lambda columns: -shown % columns)
    rows = -(-shown // columns)
    picture_height = PICTURE * float(np.clip(aspect, 0.4, 1.5))
    row_height = NUMBER_HEIGHT + picture_height + CAPTION_HEIGHT
    width, height = max(columns * TILE, 4.0), TITLE_HEIGHT + rows * row_height
    places = []
    for row, column in (divmod(place, columns) for place in range(shown)):
        left = (width - columns * TILE) / 2 + column * TILE + (TILE - PICTURE) / 2
        bottom = (rows - row - 1) * row_height + CAPTION_HEIGHT
        places.append((left / width, bottom / height, PICTURE / width, picture_height / height))
    return width, height, places


def plot_mistakes(path: Path, *, images: NDArray[np.uint8], predictions: Predictions, classes: Sequence[str], most: int) -> None:
    """Plot at most `most` of the wrongly predicted samples, those with the highest confidence first.

    `images` (n, height, width, channels) are the images of the test split; only the plotted ones are read. If there is nothing to plot,
    the figure says why.
    """
    wrong = np.count_nonzero(~predictions.correct)
    shown = predictions.most_confident_mistakes(min(most, MOST_SHOWN))
    if len(shown) == 0:
        all_correct = f"All {len(predictions.targets):,} test samples are predicted correctly."
        with canvas.figure(path, 6, 2) as figure:
            figure.suptitle(TITLE)
            text = "evaluate.mistakes is 0, so none are shown." if wrong else all_correct
            figure.text(0.5, 0.42, text, ha="center", va="center", color=canvas.MUTED, size=11)
        return
    width, height, places = grid(len(shown), aspect=images.shape[1] / images.shape[2])
    with canvas.figure(path, width, height) as figure:
        figure.set_layout_engine("none")
        figure.suptitle(f"{TITLE}: {len(shown)} of {wrong:,}", y=1 - 0.12 / height)
        for place, sample in zip(places, shown, strict=True):
            axes = figure.add_axes(place)
            axes.set_axis_off()
            image = images[sample] if images.shape[-1] == 3 else images[sample].mean(axis=-1)  # in grey
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            axes.set_title(f"sample {sample}", size=7.5, color=canvas.MUTED, pad=3)
            numbers = (int(predictions.targets[sample]), int(predictions.predicted[sample]))
            actual, answer = (canvas.label(classes[number], number, LONGEST_TITLE) for number in numbers)
            text = f"actual: {actual}\npredicted: {answer}\nconfidence: {predictions.confidence[sample]:.1%}"
            axes.annotate(text, (0.5, 0), (0, -4), xycoords="axes fraction", textcoords="offset points", ha="center", va="top", size=7.5)


def plot_label_scores(path: Path, per_label: Mapping[str, Mapping[str, float]]) -> None:
    """Plot the average precision and the F1 of the MOST_BARS most frequent labels, the most frequent at the top."""
    frequent = sorted(per_label.items(), key=lambda item: -item[1]["support"])[:MOST_BARS]
    with canvas.figure(path, 6.4, 1.3 + 0.34 * len(frequent)) as figure:
        axes = figure.add_subplot()
        for place, (name, colour) in enumerate(OF_LABELS.items()):
            lengths = [scores.get(name, 0.0) for _, scores in frequent]
            axes.barh(np.arange(len(frequent)) + 0.38 * place, lengths, 0.36, color=colour, label=name)
        names = [f"{canvas.label(label, number)} ({scores['support']:,})" for number, (label, scores) in enumerate(frequent)]
        axes.set_yticks(np.arange(len(frequent)) + 0.19, names)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), title="Test scores of each label (samples with it)")
        figure.legend(loc="outside lower center", ncols=len(OF_LABELS))


def plot_label_pairs(path: Path, counts: Integers, support: Integers, labels: Sequence[str]) -> None:
    """Plot for how many of the samples with a label (row) each label (column) is predicted. `support` counts the samples with each label."""
    title = "Labels predicted for the samples with each label"
    plot_counts(path, counts, counts / np.maximum(support[:, None], 1), labels, title=title, part="label")
