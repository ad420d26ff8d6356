"""Writes and reads the table of predictions, `predictions/test.parquet`: a row for each sample of the test split, in the order of the split."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports.metrics import SampleScores

if TYPE_CHECKING:
    import pyarrow as pa

ORIGIN = b"pipeline.origin"
"""The key of the file's metadata with the digest of all that decides the predictions: equal origins have equal predictions."""
SCORES = ("loss", "correct", "num_targets")
"""The columns of every task, but `correct` for numbers. The sum of `correct` divided by that of `num_targets` is the accuracy; that of `loss`, the
loss."""


def table(scores: SampleScores, keys: Sequence[str] | None) -> "pa.Table":
    """Return the predictions with the place of each sample in the source (`key`), or without `key` if `keys` is None."""
    import pyarrow as pa  # late: it takes 0.2 s

    columns = {**scores.answers, **{name: column for name in SCORES if (column := getattr(scores, name)) is not None}}
    if keys is not None:
        columns = {"key": [untrusted.storable(key) for key in keys], **columns}
    return pa.table(columns)


def write(path: Path, predictions: "pa.Table", *, origin: str) -> None:
    """Write the table atomically. Equal arguments give equal bytes."""
    from pyarrow import parquet

    with files.replacing(path) as draft, draft.open("wb") as file:
        parquet.write_table(predictions.replace_schema_metadata({ORIGIN: origin}), file)


def read(path: Path) -> "pa.Table | None":
    """Return the table; None if there is none. Raises Refusal if it cannot be read."""
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            found: pa.Table = parquet.ParquetFile(file).read()
            found.select(("loss", "num_targets"))  # raises KeyError for the table of another program
            return found
    except FileNotFoundError:
        return None
    except Exception as error:  # pyarrow may raise any exception on damaged bytes
        raise Refusal(f"{path}: cannot be read ({untrusted.reason(error)}): run `dvc repro -f evaluate`") from None


def sample_scores(path: Path, origin: str) -> SampleScores | None:
    """Return the scores of each sample, without the task's own columns; None if there is no table, if it is damaged, or has another origin."""
    try:
        found = read(path)
    except Refusal:  # predicting anew needs no table
        return None
    if found is None or (found.schema.metadata or {}).get(ORIGIN) != origin.encode():
        return None
    columns = {name: np.asarray(found[name]) for name in SCORES if name in found.column_names}
    return SampleScores(columns["loss"], columns.get("correct"), columns["num_targets"])
