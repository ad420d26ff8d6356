"""The states of a training from which it goes on after a kill: the newest few, whole and checked, written beside the loop."""

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
    """Those of one training, in one folder; at most `kept` of them stay."""

    folder: Path
    kept: int

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Raises OSError, with all older ones in place, where it cannot be written."""
        tensor_file.save(self.folder / f"step-{step:012d}.safetensors", tensors, metadata)
        with contextlib.suppress(OSError):  # one that stays too long does no harm
            for old in self.paths()[: -self.kept]:
                old.unlink()

    def newest(self) -> tuple[Tensors, dict[str, Any]] | None:
        """The last good state; a damaged one is named and the one before it used. Raises PermissionError for one of another user."""
        for path in reversed(self.paths()):
            if path.is_file() and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            try:
                return tensor_file.load(path)
            except Refusal:
                # out of the way: by its number it would count as the newest for ever
                aside = path.replace(path.with_suffix(".damaged"))
                print(f"warning: {path}: is damaged, and now {aside.name}: going back to the checkpoint before it", flush=True)
        return None

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))


@dataclass
class Saver:
    """Writes one snapshot at a time on a thread of its own; the loop waits for the copy alone.

    What the disk refuses is said, and the training goes on with the last good checkpoint.
    """

    checkpoints: Checkpoints
    saved_step: int | None = None
    """Of the last checkpoint that is whole on the disk."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Begin to write a copy of the tensors as they are now; `metadata` must be a copy already. Waits for the one before."""
        self.wait()
        self._writing = self._thread.submit(self._write, step, snapshot(tensors), metadata)

    def wait(self) -> None:
        """Until nothing is being written. Raises what went wrong in the writing, other than the disk's refusals."""
        if self._writing:
            self._writing.result()

    def _write(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        try:
            self.checkpoints.save(step, tensors, metadata)
            self.saved_step = step
        except OSError as error:
            kept = f"the last good one is that of step {self.saved_step}" if self.saved_step else "there is none yet"
            print(
                f"warning: {error.filename}: the checkpoint cannot be written ({error.strerror}): {kept}; the training goes on", flush=True
            )


def snapshot(tensors: Tensors) -> Tensors:
    """Copies on the host, contiguous, as the file has them: another thread then computes nothing."""
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()) for name, tensor in tensors.items()}
