"""Writes the CSV tables from which `dvc plots` plots."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.io import files
from pipeline.reports.calibration import Calibration
from pipeline.reports.predictions import Integers, Predictions


def write_confusion(path: Path, *, targets: Integers, predicted: Integers, classes: Sequence[str]) -> None:
    """Write one row per sample with the actual and the predicted class. `dvc plots` counts the rows to draw the confusion matrix."""
    pairs = zip(targets.tolist(), predicted.tolist(), strict=True)
    write(path, ("actual", "predicted"), ((classes[actual], classes[answer]) for actual, answer in pairs))


def write_reliability(path: Path, calibration: Calibration) -> None:
    """Write one row for each bin of the calibration. Empty bins have no row, because they have no confidence or accuracy."""
    columns = (calibration.centres, calibration.confidence, calibration.accuracy, calibration.samples)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write(path, ("bin_centre", "confidence", "accuracy", "samples"), rows)


def write_mistakes(path: Path, predictions: Predictions, samples: Integers, *, texts: Sequence[str] | None, classes: Sequence[str]) -> None:
    """Write one row for each sample in `samples`: its number, actual and predicted class, confidence and, if it is a text, the text.

    `samples` are the numbers of wrongly predicted samples. `texts` contains the text of each of them, in the order of `samples`; None if the
    inputs are not texts.
    """
    header: tuple[str, ...] = ("sample", "actual", "predicted", "confidence")
    rows: list[tuple[object, ...]] = [
        (
            int(sample),
            classes[predictions.targets[sample]],
            classes[predictions.predicted[sample]],
            float(predictions.confidence[sample]),
        )
        for sample in samples
    ]
    if texts is not None:
        header, rows = (*header, "text"), [(*row, text) for row, text in zip(rows, texts, strict=True)]
    write(path, header, rows)


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically, with numbers at full precision."""
    files.write_text(path, files.as_csv(header, rows))
