"""Writes the results of a training beside its weights: the history as CSV, and the last and best metrics as JSON."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from pipeline.engine.state import Progress
from pipeline.engine.step_metrics import Row
from pipeline.io import files
from pipeline.refusal import Refusal

COLUMNS = (
    "step",
    "learning_rate",
    "train/objective",
    "train/accuracy",
    "train/gradient_norm",
    "train/skipped_steps",
    "valid/loss",
    "valid/accuracy",
)


def write_history(path: Path, rows: Sequence[Row]) -> None:
    """Write one row per report as CSV; a cell is empty where nothing was measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_text(path, text.getvalue())


def write_metrics(path: Path, progress: Progress, exported_step: int) -> None:
    """Write the last report, the best validation and the exported step as JSON, nested for `dvc metrics diff`."""
    last = progress.rows[-1]
    numbers: dict[str, object] = {"steps": last["step"], "exported_step": exported_step}
    # in column order: the keys of rows restored from a checkpoint are in another order
    for name in (column for column in COLUMNS if column in last):
        split, _, quantity = name.partition("/")
        if quantity:
            section = numbers.setdefault(split, {})
            assert isinstance(section, dict)
            section[quantity] = last[name]
    if progress.best_value is not None:
        numbers["best"] = {"step": progress.best_step, "value": progress.best_value}
    files.write_json(path, numbers)


def read_history(path: Path) -> list[dict[str, str]]:
    """Return the rows that `write_history` wrote, their cells as text. Raises Refusal where the file is missing or cannot be parsed."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise Refusal(f"{path}: cannot be read ({error}): run `dvc repro -f train`") from None
