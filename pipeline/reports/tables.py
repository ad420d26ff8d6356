"""The tables that `dvc plots` draws, as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.io import files
from pipeline.reports.calibration import Calibration
from pipeline.reports.predictions import Integers


def write_confusion(path: Path, *, targets: Integers, predicted: Integers, classes: Sequence[str]) -> None:
    """One row a sample, as DVC's `confusion` template counts them."""
    pairs = zip(targets.tolist(), predicted.tolist(), strict=True)
    write(path, ("actual", "predicted"), ((classes[actual], classes[answer]) for actual, answer in pairs))


def write_reliability(path: Path, calibration: Calibration) -> None:
    """One row a bin that holds samples: an empty bin has no confidence and no accuracy to plot."""
    columns = (calibration.centres, calibration.confidence, calibration.accuracy, calibration.samples)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write(path, ("bin_centre", "confidence", "accuracy", "samples"), rows)


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Whole or not at all; numbers with all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    files.write_text(path, text.getvalue())
