"""The batch of a step whose numbers are none, kept as the step read it, and in words."""

from pathlib import Path

import torch

from pipeline.data.batch import Batch
from pipeline.io import tensor_file

NAMED = 5


def keep(batch: Batch, *, most: int, step: int, learning_rate: float, folder: Path) -> str:
    """Write inputs (n, height, width, channels) uint8, targets (n,) or (n, classes) and rows (n,) of the train split.

    Returns where they are, and the learning rate, in words.
    """
    path = folder / f"nonfinite-{step:012d}.safetensors"
    # a part at a time: the device may have room for no more
    parts = [(inputs.cpu(), targets.cpu()) for inputs, targets in batch.parts(most)]
    inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    samples = ", ".join(str(row) for row in batch.batch_index.rows[:NAMED].tolist())
    try:
        tensor_file.save(path, {"inputs": inputs, "targets": targets, "rows": batch.batch_index.rows}, {"step": step})
        place = f"its batch is in {path}"
    except OSError as error:
        place = f"its batch could not be written ({error.strerror})"
    return f"at learning rate {learning_rate:.3g} and on samples {samples}, ... ({place})"
