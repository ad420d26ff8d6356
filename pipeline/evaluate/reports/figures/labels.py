"""Figures of several labels a sample: the scores of each label, and which labels are predicted for samples that have another one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.evaluate.reports.figures import canvas, mistakes
from pipeline.evaluate.reports.metrics import Integers

MOST_BARS, LONGEST_NAME = 40, 40
SHOWN = {"average_precision": canvas.BLUE, "f1": canvas.VERMILION}


def plot_scores(path: Path, per_label: Mapping[str, Mapping[str, float]]) -> None:
    """Plot the average precision and the F1 of the MOST_BARS most frequent labels, the most frequent at the top."""
    frequent = sorted(per_label.items(), key=lambda item: -item[1]["support"])[:MOST_BARS]
    with canvas.figure(path, 6.4, 1.3 + 0.34 * len(frequent)) as figure:
        axes = figure.add_subplot()
        for place, (name, colour) in enumerate(SHOWN.items()):
            lengths = [scores.get(name, 0.0) for _, scores in frequent]
            axes.barh(np.arange(len(frequent)) + 0.38 * place, lengths, 0.36, color=colour, label=name)
        names = [f"{canvas.label(label, number, LONGEST_NAME)} ({scores['support']:,})" for number, (label, scores) in enumerate(frequent)]
        axes.set_yticks(np.arange(len(frequent)) + 0.19, names)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), title="Test scores of each label (samples with it)")
        figure.legend(loc="outside lower center", ncols=len(SHOWN))


def plot_pairs(path: Path, counts: Integers, support: Integers, labels: Sequence[str]) -> None:
    """Plot for how many of the samples with a label (row) each label (column) is predicted. `support` counts the samples with each label."""
    title = "Labels predicted for the samples with each label"
    mistakes.plot_counts(path, counts, counts / np.maximum(support[:, None], 1), labels, title=title, part="label")
