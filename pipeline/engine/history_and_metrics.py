"""Writes the history of a training as CSV, and its last and best metrics as JSON."""

import csv
import io
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from pipeline.engine.state import Progress
from pipeline.engine.step_metrics import LOSS, Row
from pipeline.io import files


def columns(metrics: Iterable[str], only_validated: Container[str] = ()) -> tuple[str, ...]:
    """Return the columns of the history, the CSV file of all reported metrics.

    `metrics` are the names of the metrics that a validation of the task reports. The training reports them, too, except `only_validated`.
    """
    reported = [name for name in metrics if name != LOSS]
    return (
        "step",
        "learning_rate",
        "train/objective",
        *(f"train/{name}" for name in reported if name not in only_validated),
        "train/gradient_norm",
        "train/skipped_steps",
        "valid/loss",
        *(f"valid/{name}" for name in reported),
    )


def write_history(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write `rows`, one per report, to a CSV file. A cell is empty if the report has no value for the column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_text(path, text.getvalue())


def write_metrics(path: Path, progress: Progress, exported_step: int, columns: Sequence[str]) -> None:
    """Write a JSON file with the metrics of the last report, the best validation, and two steps.

    `steps` is the step of the last report, and `exported_step` that of the exported weights. The metrics of the last report are nested by
    split, as `dvc metrics diff` expects. They have the order of `columns`.
    """
    last = progress.rows[-1]
    numbers: dict[str, object] = {"steps": last["step"], "exported_step": exported_step}
    # sort by column: the keys of a row that was restored from a checkpoint are in another order
    for name in (column for column in columns if column in last):
        split, _, quantity = name.partition("/")
        if quantity:
            section = numbers.setdefault(split, {})
            assert isinstance(section, dict)
            section[quantity] = last[name]
    if progress.best_value is not None:
        numbers["best"] = {"step": progress.best_step, "value": progress.best_value}
    files.write_json(path, numbers)
