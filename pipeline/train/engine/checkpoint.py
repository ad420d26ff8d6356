"""Writes checkpoints in the background while the training loop runs, and verifies them when they are loaded."""

import contextlib
import errno
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from pipeline.inference.tensor_file import Tensors
from pipeline.train.group.sharding import host_copies


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, all in `folder`. Only the newest `kept` checkpoints remain on disk.

    If several processes train together, only one of them writes here (`writes`), and moves damaged checkpoints aside: an error of reading in
    one process must not take the checkpoint from the others.
    """

    folder: Path
    kept: int
    writes: bool = True

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Write the checkpoint of `step`, then delete old checkpoints until only `kept` remain.

        If writing fails, raises OSError and deletes nothing.
        """
        tensor_file.save(self.folder / f"step-{step:012d}.safetensors", tensors, metadata)
        with contextlib.suppress(OSError):  # an old checkpoint that cannot be deleted does no harm
            for old in self.paths()[: -self.kept]:
                old.unlink()

    def newest(self) -> tuple[Tensors, dict[str, Any]] | None:
        """Return the tensors and metadata of the newest intact checkpoint, or None if no checkpoint is intact.

        If a checkpoint is damaged, renames its file to `*.damaged`, prints a warning, and tries the previous checkpoint. If it
        may not rename it, raises Refusal. Raises PermissionError if the user may not read a checkpoint.
        """
        for path in reversed(self.paths()):
            if path.is_file() and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            try:
                return tensor_file.load(path)
            except Refusal:
                if not self.writes:
                    raise
                # rename it: otherwise its step number would make it the newest at every start
                aside = path.replace(path.with_suffix(".damaged"))
                print(
                    f"warning: {path}: is damaged and was moved to {aside.name}: the previous checkpoint is used, if there is one",
                    flush=True,
                )
        return None

    def paths(self) -> list[Path]:
        """Return the paths of the checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))


@dataclass
class Saver:
    """Writes checkpoints on a background thread, one at a time.

    The training loop waits while the tensors are copied to the host. Before that, it waits until the previous checkpoint is written. If
    writing fails with OSError, a warning is printed and the training continues. Earlier checkpoints remain.
    """

    checkpoints: Checkpoints
    saved_step: int | None = None
    """Step of the newest checkpoint that is completely on disk, or None if there is no such checkpoint."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Wait until the previous checkpoint is written, copy `tensors` to the host, and start writing the copies.

        The copies are contiguous, like the tensors in a checkpoint file, so the background thread can write them as they are. `metadata` is
        not copied, so do not change it afterwards. Raises any exception of the previous write except OSError.

        If divided tensors are among them, all processes must call this after the same step. Only one of them writes.
        """
        self.wait()
        copies = host_copies(tensors, keep=self.checkpoints.writes)
        if self.checkpoints.writes:
            self._writing = self._thread.submit(self._write, step, copies, metadata)

    def wait(self) -> None:
        """Wait until no checkpoint is being written.

        Raises any exception of the last write except OSError, for which a warning was printed instead.
        """
        if self._writing:
            self._writing.result()

    def _write(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        try:
            self.checkpoints.save(step, tensors, metadata)
            self.saved_step = step
        except OSError as error:
            kept = (
                f"the newest complete checkpoint is that of step {self.saved_step}" if self.saved_step else "no checkpoint is complete yet"
            )
            print(f"warning: {error.filename}: the checkpoint cannot be written ({error.strerror}): {kept}; training continues", flush=True)
