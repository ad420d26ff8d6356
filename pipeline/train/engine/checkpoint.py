"""Writes checkpoints in the background while the training loop runs, and verifies them when they are loaded."""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from pipeline.inference.tensor_file import Tensors
from pipeline.train.engine.metrics import Row
from pipeline.train.engine.state import stripped
from pipeline.train.group.sharding import host_copies
from pipeline.train.work_folder import HISTORY, LASTING

PROGRESS, ROWS = "progress", "rows"
MANIFEST = "manifest"
"""The name of a tensor of bytes: the metadata that a model file of this training would have, as JSON. With a tokenizer they may be too long for the header."""
WEIGHTS = ("best", "average", "network")
"""The prefixes of the tensors that are weights. The first of them that a checkpoint has are those that the training would export."""
NONFINITE = ".nonfinite"
PART = 2**14
"""Values that are examined at once, so few that torch does it in one thread: the training needs the others."""


class LostRows(Refusal):
    """Raised if the file lacks the rows of a checkpoint."""


@dataclass
class HistoryFile:
    """The rows of the history as JSON lines in a file of their own, so that a save writes only those since the one before. A checkpoint records
    how many bytes at the beginning of the file belong to it, and their SHA-256.

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
        return {"bytes": self.size_bytes, "sha256": self.digest.hexdigest()}

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


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, all in `folder`. Only the newest `kept` checkpoints remain on disk, and the newest whose weights are all
    finite: the name of any other one contains `.nonfinite`.

    The rows of the history have no bound, and the header of a safetensors file has one: they are in a file beside the checkpoints, and a
    checkpoint has in their place what `HistoryFile.append` returns.

    If several processes train together, only one of them writes here (`writes`), and moves damaged checkpoints aside: an error of reading in
    one process must not take the checkpoint from the others.
    """

    folder: Path
    kept: int
    writes: bool = True

    @cached_property
    def history(self) -> HistoryFile:
        return HistoryFile(self.folder / HISTORY)

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any], *, lasts: bool = False) -> None:
        """Write the checkpoint of `step`, then delete old checkpoints (see the class). If it `lasts`, write a copy that is none of them.

        If writing fails, raises OSError and deletes nothing.
        """
        if progress := metadata.get(PROGRESS):
            rows = progress[ROWS]
            record = self.history.append(rows, progress.get("num_rows", len(rows)))
            metadata = {**metadata, PROGRESS: {**progress, ROWS: record}}
        mark = "" if all(is_finite(stripped(prefix, tensors)) for prefix in WEIGHTS) else NONFINITE
        name = f"step-{step:012d}{mark}.safetensors"
        tensor_file.save(self.folder / name, tensors, metadata)
        if lasts:
            with files.replacing(self.folder / f"{LASTING}{name}") as draft:
                shutil.copyfile(self.folder / name, draft)
        with suppress(OSError):  # an old checkpoint that cannot be deleted does no harm
            for old in self.paths()[: -self.kept]:
                if old not in self.finite_paths()[-1:]:
                    old.unlink()

    def newest(self) -> tuple[Tensors, dict[str, Any]] | None:
        """Return the tensors and metadata of the newest intact checkpoint, or None if no checkpoint is intact.

        If a checkpoint or its part of the history is damaged, renames its file to `*.damaged`, prints a warning, and tries the previous
        checkpoint. If it may not rename it, raises Refusal. Raises PermissionError if the user may not read a checkpoint.
        """
        for path in reversed(self.paths()):
            for needed in (path, self.history.path):
                if needed.is_file() and not os.access(needed, os.R_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(needed))
            try:
                return self.load(path)
            except Refusal as refusal:
                if not self.writes:
                    raise
                cause = f" ({refusal})" if isinstance(refusal, LostRows) else ""
                # rename it: otherwise its step number would make it the newest at every start
                aside = path.replace(path.with_suffix(".damaged"))
                print(
                    f"warning: {path}: is damaged and was moved to {aside.name}: the previous checkpoint is used, if there is one{cause}",
                    flush=True,
                )
        return None

    def load(self, path: Path) -> tuple[Tensors, dict[str, Any]]:
        """Return the tensors and metadata of one checkpoint. Raises Refusal if it is damaged, and LostRows if its rows are."""
        tensors, metadata = tensor_file.load(path)
        tensors.pop(MANIFEST, None)
        with suppress(LookupError, TypeError):  # no checkpoint, which is not for this class to refuse
            if isinstance(record := metadata[PROGRESS][ROWS], dict):
                metadata[PROGRESS][ROWS] = self.history.read_rows(record)
        return tensors, metadata

    def paths(self) -> list[Path]:
        """Return the paths of the checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def finite_paths(self) -> list[Path]:
        """Return the paths of the checkpoints whose weights are all finite, oldest first."""
        return [path for path in self.paths() if NONFINITE not in path.suffixes]

    def finite_weights(self) -> tuple[Tensors, int]:
        """Return the weights of the newest checkpoint whose weights are all finite, and its step; no weights if there is none."""
        for path in reversed(self.finite_paths()):
            with suppress(Refusal):
                tensors, metadata = tensor_file.load(path)
                return exported(tensors), int(metadata["state"]["step"])
        return {}, 0


def exported(tensors: Tensors) -> Tensors:
    """Return those weights among the tensors of a checkpoint that the training would export, without the frozen ones."""
    return next((found for prefix in WEIGHTS if (found := stripped(prefix, tensors))), {})


def is_finite(tensors: Tensors) -> bool:
    parts = (part for tensor in tensors.values() if tensor.is_floating_point() for part in torch.split(tensor.flatten(), PART))
    return all(bool(torch.isfinite(part).all()) for part in parts)


def as_model(tensors: Tensors, metadata: Mapping[str, Any], path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Return the weights and the metadata of the model file that the training would have written at the checkpoint `path`.

    Raises Refusal if the checkpoint does not have these weights, or if they are not finite.
    """
    try:
        content = tensors[MANIFEST].numpy().tobytes()
        untrusted.refuse_crowded(content)
        step = metadata[PROGRESS]["best_step"] if stripped("best", tensors) else metadata["state"]["step"]
        manifest, frozen = {**json.loads(content), "step": step}, metadata["frozen"]
    except (LookupError, TypeError, ValueError, OSError, RecursionError):
        raise Refusal(f"{path}: is a checkpoint of another version of this pipeline: choose a model file") from None
    weights = exported(tensors)
    if frozen:
        raise Refusal(f"{path}: is a checkpoint of a training that froze weights, which are not in it: choose a model file")
    if not weights or not is_finite(weights):
        raise Refusal(f"{path}: is a checkpoint whose weights are not finite: choose an earlier one")
    return weights, manifest


@dataclass
class Saver:
    """Writes checkpoints on a background thread, one at a time.

    The training loop waits while the tensors are copied to the host. Before that, it waits until the previous checkpoint is written. If
    writing fails with OSError, a warning is printed and the training continues. Earlier checkpoints remain. Any other exception ends the
    training as a Refusal.
    """

    checkpoints: Checkpoints
    saved_step: int | None = None
    """Step of the newest checkpoint that is completely on disk, or None if there is no such checkpoint."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any], *, lasts: bool = False) -> None:
        """Wait until the previous checkpoint is written, copy `tensors` to the host, and start writing the copies.

        The copies are contiguous, like the tensors in a checkpoint file, so the background thread can write them as they are. `metadata` is
        not copied, so do not change it afterwards; only its rows may grow. Raises Refusal if the previous write failed (see `wait`).

        If divided tensors are among them, all processes must call this after the same step. Only one of them writes.
        """
        self.wait()
        copies = host_copies(tensors, keep=self.checkpoints.writes)
        if self.checkpoints.writes:
            self._writing = self._thread.submit(self._write, step, copies, metadata, lasts=lasts)

    def wait(self) -> None:
        """Wait until no checkpoint is being written.

        Raises Refusal, once, if the last write failed, except by OSError, for which a warning was printed instead.
        """
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Wait at the end of the block until no checkpoint is being written. If the block has failed, an error of the last write is printed,
        so that it does not hide that of the block.
        """
        try:
            yield
        except BaseException:
            try:
                self.wait()
            except Refusal as refusal:
                print(f"error: {refusal}", file=sys.stderr, flush=True)
            raise
        self.wait()

    def _write(self, step: int, tensors: Tensors, metadata: Mapping[str, Any], *, lasts: bool) -> None:
        try:
            self.checkpoints.save(step, tensors, metadata, lasts=lasts)
            self.saved_step = step
        except OSError as error:
            print(
                f"warning: {error.filename}: the checkpoint cannot be written ({error.strerror}): {self._kept()}; training continues",
                flush=True,
            )
        except Exception as error:
            raise Refusal(
                f"{self.checkpoints.folder}: the checkpoint of step {step} cannot be written ({type(error).__name__}: {untrusted.reason(error)}): {self._kept()}; "
                "set PIPELINE_CHECKPOINT_EVERY_S=0 to train without checkpoints, and report this error"
            ) from error

    def _kept(self) -> str:
        return f"the newest complete checkpoint is that of step {self.saved_step}" if self.saved_step else "no checkpoint is complete yet"
