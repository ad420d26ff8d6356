"""Writes what a training leaves beside the model: its history as CSV, the metrics of the exported weights as JSON, and a batch that gave a non-finite loss."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import torch

from pipeline.core import files
from pipeline.inference import tensor_file
from pipeline.inference.batches.blocks import BlockBatch
from pipeline.train.engine.metrics import LOSS, Row
from pipeline.train.engine.state import Progress


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
    files.write_text(path, files.as_csv(columns, [[row.get(column) for column in columns] for row in rows]))


def write_metrics(path: Path, progress: Progress, exported_step: int, columns: Sequence[str]) -> None:
    """Write a JSON file with the metrics of the exported weights, the best validation, and two steps.

    `steps` is the step of the last report, and `exported_step` that of the exported weights. `train` and `valid` have the metrics that were
    reported after `exported_step`; if another report was the last, its metrics are in `last`. `ended_at` is there only if a non-finite value
    ended the training early. Metrics are nested by split, as `dvc metrics diff` expects.
    """
    last = progress.rows[-1]
    numbers: dict[str, object] = {"steps": last["step"], "exported_step": exported_step}
    numbers |= by_split(next((row for row in progress.rows if row["step"] == exported_step), {}), columns)
    if last["step"] != exported_step:
        numbers["last"] = by_split(last, columns)
    if progress.ended_at is not None:
        numbers["ended_at"] = progress.ended_at
    if progress.best_value is not None:
        numbers["best"] = {"step": progress.best_step, "value": progress.best_value}
    files.write_json(path, numbers)


def by_split(row: Row, columns: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return the metrics of a row of the history, by split and quantity, in the order of `columns`."""
    found: dict[str, dict[str, object]] = {}
    # the keys of a row that was restored from a checkpoint are in another order
    for name in (column for column in columns if column in row and "/" in column):
        split, _, quantity = name.partition("/")
        found.setdefault(split, {})[quantity] = row[name]
    return found


MAX_LISTED = 5
"""Largest number of samples that the description lists."""


def save(batch: BlockBatch, *, max_samples: int, step: int, learning_rate: float, folder: Path) -> str:
    """Save the training batch of `step` to a file in `folder`, so that the cause of a non-finite loss or gradient can be found. Return a
    description of the batch for a message.

    The description contains the learning rate, the rows of the first samples, and the path of the file. If writing fails with OSError, no
    exception is raised, and the description contains the reason instead of the path.

    The file contains the augmented inputs, the targets, and the rows (n,) of the samples in the train split. A sample of a language model
    is a window of tokens, and its row is the position of its first token. The inputs are augmented again for the file, at most
    `max_samples` at a time, so that they fit in the device's memory.
    """
    path = folder / f"nonfinite-{step:012d}.safetensors"
    # build one part at a time: the whole batch may not fit on the device
    parts = [[tensor.cpu() for tensor in part if tensor is not None] for part in batch.parts(max_samples)]
    inputs, targets, *_ = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    rows = ", ".join(str(row) for row in batch.batch_index.rows[:MAX_LISTED].tolist())
    try:
        tensor_file.save(path, {"inputs": inputs, "targets": targets, "rows": batch.batch_index.rows}, {"step": step})
        saved = f"its batch is in {path}"
    except OSError as error:
        saved = f"its batch could not be written ({error.strerror})"
    return f"at learning rate {learning_rate:.3g} and on {batch.row_noun} {rows}, ... ({saved})"
