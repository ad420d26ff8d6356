"""Writes predictions to a CSV or Parquet file of any length, some rows at a time."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.core.untrusted import shown

if TYPE_CHECKING:
    from pipeline.tools.predict.protocols import Prediction

ROWS = 65_536
"""The rows that are in memory at once, and those of a row group of Parquet."""
SUFFIXES = (".csv", ".parquet")


def refuse_unusable(path: Path, inputs: Sequence[str]) -> None:
    """Raise Refusal if the name of `path` does not say the format, or if writing it would replace one of the inputs."""
    if path.suffix not in SUFFIXES or path.is_dir():
        raise Refusal(f"--output: {shown(path)}: should be a file whose name ends in {' or '.join(SUFFIXES)}")
    if path.exists() and any(Path(name).exists() and path.samefile(name) for name in inputs):
        raise Refusal(f"--output: {shown(path)}: is one of the inputs, which it would replace: write another path")
    if path.exists() and any(Path(name).is_dir() and path.resolve().is_relative_to(Path(name).resolve()) for name in inputs):
        raise Refusal(f"--output: {shown(path)}: is in a folder that is read, and would be replaced: write another path")


def write(path: Path, predictions: "Iterable[Prediction]") -> int:
    """Write a row for each prediction, as a whole file or not at all, and return their number. Raises Refusal if there are none."""
    import pyarrow as pa  # late: it takes 0.2 s
    from pyarrow import csv, parquet

    rows = (prediction.row() for prediction in predictions)
    total, schema, writer = 0, None, None
    with files.replacing(path) as draft, draft.open("wb") as file:
        try:
            while part := list(islice(rows, ROWS)):
                table = pa.Table.from_pylist(part, schema=schema)
                if writer is None:
                    schema = table.schema
                    writer = (csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter)(file, schema)
                writer.write_table(table)
                total += len(part)
        finally:
            if writer:
                writer.close()
        if not total:
            raise Refusal(f"--output: {shown(path)}: is not written, because there is no prediction")
    return total
