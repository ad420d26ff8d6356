"""Checkpoints: the newest few are kept, checked when loaded, and written in the background while the loop runs."""

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
    """The checkpoints of one training in one folder; the newest `kept` are kept."""

    folder: Path
    kept: int

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Write a checkpoint, then delete the oldest beyond `kept`. Where writing fails, raises OSError and deletes none."""
        tensor_file.save(self.folder / f"step-{step:012d}.safetensors", tensors, metadata)
        with contextlib.suppress(OSError):  # an old checkpoint that cannot be deleted does no harm
            for old in self.paths()[: -self.kept]:
                old.unlink()

    def newest(self) -> tuple[Tensors, dict[str, Any]] | None:
        """Return the tensors and metadata of the newest intact checkpoint, or None where there is none.

        Damaged checkpoints are renamed with a warning. Raises PermissionError where a checkpoint is not readable for this user.
        """
        for path in reversed(self.paths()):
            if path.is_file() and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            try:
                return tensor_file.load(path)
            except Refusal:
                # rename it: by its step number it would stay the newest for ever
                aside = path.replace(path.with_suffix(".damaged"))
                print(f"warning: {path}: is damaged and was moved to {aside.name}: using the checkpoint before it", flush=True)
        return None

    def paths(self) -> list[Path]:
        """Return the paths of the checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))


@dataclass
class Saver:
    """Writes one checkpoint at a time on a background thread; the loop only waits for the copy to the host.

    A write that fails with OSError prints a warning; the training continues and the last good checkpoint stays.
    """

    checkpoints: Checkpoints
    saved_step: int | None = None
    """Step of the newest checkpoint that is completely on disk."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        """Wait for the previous checkpoint, copy the tensors to the host, and start writing them. `metadata` must not change afterwards."""
        self.wait()
        self._writing = self._thread.submit(self._write, step, snapshot(tensors), metadata)

    def wait(self) -> None:
        """Wait until nothing is being written. Raises any exception of the background write other than OSError."""
        if self._writing:
            self._writing.result()

    def _write(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        try:
            self.checkpoints.save(step, tensors, metadata)
            self.saved_step = step
        except OSError as error:
            kept = f"the newest complete one is of step {self.saved_step}" if self.saved_step else "there is none yet"
            print(f"warning: {error.filename}: the checkpoint cannot be written ({error.strerror}): {kept}; training continues", flush=True)


def snapshot(tensors: Tensors) -> Tensors:
    """Return contiguous copies on the host, the layout of the file, so that the background thread has nothing to compute."""
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()) for name, tensor in tensors.items()}
