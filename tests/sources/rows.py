"""The same rows as files of every format."""

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".csv.gz", ".jsonl.zst")


def packed(path: Path, content: bytes) -> Path:
    """Write a file, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows in the format that the name of the file says. None is an empty field, null or a null of Arrow."""
    suffix = path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
    if suffix == "parquet":
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([*rows]), path, row_group_size=5)
        return path
    if suffix == "json":
        return packed(path, json.dumps([*rows], default=str).encode())
    if suffix == "jsonl":
        return packed(path, "".join(json.dumps(row, default=str) + "\n" for row in rows).encode())
    lines = [[*rows[0]], *([field(value) for value in row.values()] for row in rows)]
    if suffix == "tsv":  # in which no field is quoted
        return packed(path, "".join("\t".join(fields) + "\n" for fields in lines).encode())
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return packed(path, stream.getvalue().encode())


def field(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
