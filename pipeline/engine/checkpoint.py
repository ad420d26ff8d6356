"""Checkpoints: written in the background while the training loop runs, and verified when loaded; only the newest few are kept."""

import contextlib
import errno
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.io import tensor_file
from pipeline.io.tensor_file import Tensors
from pipeline.refusal import Refusal


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, all in `folder`. Only the newest `kept` checkpoints remain on disk."""

    folder: Path
    kept: int

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Write a checkpoint, then delete all but the newest `kept`. Raises OSError, and deletes none, if writing fails."""
        tensor_file.save(self.folder / f"step-{step:012d}.safetensors", tensors, metadata)
        with contextlib.suppress(OSError):  # an old checkpoint that cannot be deleted does no harm
            for old in self.paths()[: -self.kept]:
                old.unlink()

    def newest(self) -> tuple[Tensors, dict[str, Any]] | None:
        """Return the tensors and metadata of the newest intact checkpoint, or None if no checkpoint is intact.

        Checkpoints that are newer but damaged are renamed to `*.damaged`, each with a warning. Raises PermissionError if the
        user may not read a checkpoint.
        """
        for path in reversed(self.paths()):
            if path.is_file() and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            try:
                return tensor_file.load(path)
            except Refusal:
                # rename it: otherwise its step number would make it the newest at every start
                aside = path.replace(path.with_suffix(".damaged"))
                print(
                    f"warning: {path}: is damaged and was moved to {aside.name}: the checkpoint before it is used, if there is one",
                    flush=True,
                )
        return None

    def paths(self) -> list[Path]:
        """Return the paths of the checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))


@dataclass
class Saver:
    """Writes checkpoints on a background thread, one at a time.

    The training loop waits only for the copy to the host, and for the previous checkpoint if it is still being written.
    If a write fails with OSError, a warning is printed, the training continues, and the earlier checkpoints remain.
    """

    checkpoints: Checkpoints
    saved_step: int | None = None
    """Step of the newest checkpoint that is completely on disk; None if no checkpoint is."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Wait until the previous checkpoint is written, copy `tensors` to the host, and start writing the copies.

        Do not change `metadata` afterwards: it is not copied. Raises what `wait` raises.
        """
        self.wait()
        self._writing = self._thread.submit(self._write, step, snapshot(tensors), metadata)

    def wait(self) -> None:
        """Wait until the current write, if any, has ended. Raises any exception of this write except OSError, which only prints a warning."""
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


def snapshot(tensors: Tensors) -> Tensors:
    """Return contiguous copies of the tensors on the host. A checkpoint file stores them in this layout, so the background thread only writes."""
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()) for name, tensor in tensors.items()}
