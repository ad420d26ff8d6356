"""The file in which the rows of the history outlive a kill: checkpoints share it, so that a save writes only the rows since the one before."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal
from pipeline.train.engine.metrics import Row


class LostRows(Refusal):
    """Raised if the file lacks the rows of a checkpoint."""


@dataclass
class HistoryFile:
    """The rows of one training as JSON lines. A checkpoint records how many bytes at the beginning of the file belong to it, and their SHA-256.

    Rows are only appended. What follows the recorded bytes, as a killed save leaves it, is ignored by `read_rows` and cut off by `append`. So each
    checkpoint on disk keeps its rows, and the one before it can be resumed, too.
    """

    path: Path
    num_rows: int = 0
    size_bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    """The hash object of the first `size_bytes` bytes. Appended bytes are added to it, so no byte is read again."""

    def append(self, rows: Sequence[Row], num_rows: int) -> dict[str, object]:
        """Write those of the first `num_rows` rows that the file lacks. Once they are on disk, return the record for the checkpoint. The name
        of a new file is on disk when that of the checkpoint is, in the same folder.

        If the file was removed or cut, all rows are written again. If writing fails, raises OSError, and the next call repeats it. Without
        rows, no file is written.
        """
        if num_rows:
            self.write(rows, num_rows)
        return {"bytes": self.size_bytes, "sha256": self.digest.hexdigest()}

    def write(self, rows: Sequence[Row], num_rows: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.naming(self.path), self.path.open("ab") as file:
            if file.tell() < self.size_bytes:
                self.num_rows, self.size_bytes, self.digest = 0, 0, hashlib.sha256()
            content = "".join(f"{files.canonical(row)}\n" for row in rows[self.num_rows : num_rows]).encode()
            file.truncate(self.size_bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.num_rows, self.size_bytes = num_rows, self.size_bytes + len(content)
        self.digest.update(content)

    def read_rows(self, record: Mapping[str, Any]) -> list[Row]:
        """Return the rows that belong to `record`, which `append` has returned. The next `append` continues after them.

        Raises LostRows if the file does not begin with these bytes.
        """
        try:
            content = self.beginning(record["bytes"]) if record["bytes"] else b""
            rows = [json.loads(line) for line in content.splitlines()]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise LostRows(f"{self.path}: lacks rows of it ({untrusted.reason(error)})") from None
        digest = hashlib.sha256(content)
        if digest.hexdigest() != record.get("sha256"):
            raise LostRows(f"{self.path}: lacks rows of it (other contents)")
        self.num_rows, self.size_bytes, self.digest = len(rows), len(content), digest
        return rows

    def beginning(self, size_bytes: int) -> bytes:
        if untrusted.size_bytes(self.path) < size_bytes:
            raise ValueError("is too short")
        with self.path.open("rb") as file:
            return file.read(size_bytes)
